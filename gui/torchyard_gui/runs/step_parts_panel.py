"""Of one chosen replica, what its last step was made of: a name and a value a line."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from torchyard_gui.bridge.run_parts import Track
from torchyard_gui.bridge.step_parts import WRITTEN, name_of, sentence_of, written
from torchyard_gui.widgets import SectionLabel, label


class StepParts(QWidget):
    """Hidden where nothing of it was told. A sum over replicas would mean nothing, so there is none."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.values = {field: label() for field in WRITTEN}
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 4, 0, 0)
        layout.setVerticalSpacing(4)
        layout.addWidget(SectionLabel(self.tr("Step")), 0, 0, 1, 2)
        for row, (field, value) in enumerate(self.values.items(), 1):
            name = label(name_of(field), role="small", ink="2")
            for one in (name, value):
                one.setToolTip(sentence_of(field))
            value.setAccessibleName(name_of(field))
            layout.addWidget(name, row, 0)
            layout.addWidget(value, row, 1, Qt.AlignmentFlag.AlignRight)
        layout.setColumnStretch(0, 1)
        self.hide()

    def show_track(self, track: Track | None) -> None:
        """Of one replica; None for none or several."""
        told = {field: track.ring.last(field) for field in WRITTEN} if track is not None else {}
        self.setVisible(any(value is not None for value in told.values()))
        for field, value in self.values.items():
            value.setText(written(field, told.get(field)))
