"""A row for one piece of work: its state, its name, how far it is, and what came of it."""

from __future__ import annotations

from PySide6.QtWidgets import QGridLayout, QWidget

from torchyard_gui.widgets.labels import ElidedLabel, label, set_ink
from torchyard_gui.widgets.meter_bar import MeterBar
from torchyard_gui.widgets.state_mark import StateMark


class ProgressRow(QWidget):
    """States are those of `paint_state`: "pending", "running", "passed", "warning", "failed", "skipped"."""

    def __init__(self, name: str, state: str = "pending", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = StateMark(state)
        self.name = ElidedLabel(name)
        self.amount = label(role="small", ink="2")
        self.bar = MeterBar(0.0, "accent")
        self.bar.hide()
        self.detail = label(role="small", ink="2", wrap=True)
        self.detail.hide()
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 2, 0, 2)
        layout.setHorizontalSpacing(10)
        layout.setVerticalSpacing(3)
        layout.addWidget(self.mark, 0, 0)
        layout.addWidget(self.name, 0, 1)
        layout.addWidget(self.amount, 0, 2)
        layout.addWidget(self.bar, 1, 1, 1, 2)
        layout.addWidget(self.detail, 2, 1, 1, 2)
        layout.setColumnStretch(1, 1)

    @property
    def state(self) -> str:
        return self.mark.state

    def set_state(self, state: str, detail: str = "") -> None:
        """What came of it, in a word and a sentence."""
        self.mark.set_state(state)
        self.detail.setText(detail)
        self.detail.setVisible(bool(detail))
        set_ink(self.detail, "fail" if state in ("failed", "error") else "2")
        if state not in ("running", "sending", "starting", "checking"):
            self.bar.hide()
        self.setAccessibleName(f"{self.name.text()}: {state}. {detail}")

    def set_progress(self, fraction: float | None, amount: str = "") -> None:
        """How far it is, 0 to 1, or None where nobody can know; with the amount in words."""
        self.bar.show()
        self.bar.set_value(fraction)
        self.amount.setText(amount)
