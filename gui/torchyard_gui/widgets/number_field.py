"""A whole number to type or step."""

from __future__ import annotations

from PySide6.QtWidgets import QSpinBox, QWidget

MARGIN = 9
"""As far as the text of other fields is from their border; style sheets cannot say it of a spin box."""


class NumberField(QSpinBox):
    """A spin box that looks as the other fields do."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.lineEdit().setTextMargins(MARGIN, 0, 0, 0)
