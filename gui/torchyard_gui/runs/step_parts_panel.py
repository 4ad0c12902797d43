"""Of one chosen replica, what its last step was made of, or how it serves the trainers: a name and a value a line."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from torchyard_gui.bridge.run_state_types import Track
from torchyard_gui.bridge.step_breakdown import OF_SERVERS, WRITTEN, name_of, sentence_of, written
from torchyard_gui.widgets import SectionLabel, label


class StepParts(QWidget):
    """Hidden where nothing of it was told. A sum over replicas would mean nothing, so there is none."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.heading = SectionLabel()
        self.values = {field: label() for field in WRITTEN}
        self.names = {field: label(name_of(field), role="small", ink="2") for field in WRITTEN}
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 4, 0, 0)
        layout.setVerticalSpacing(4)
        layout.addWidget(self.heading, 0, 0, 1, 2)
        for row, (field, value) in enumerate(self.values.items(), 1):
            value.setAccessibleName(name_of(field))
            layout.addWidget(self.names[field], row, 0)
            layout.addWidget(value, row, 1, Qt.AlignmentFlag.AlignRight)
        layout.setColumnStretch(0, 1)
        self.hide()

    def show_track(self, track: Track | None) -> None:
        """Of one replica; None for none or several. A trainer has all lines of a step, a server those that it tells."""
        told = {field: track.ring.last(field) for field in WRITTEN} if track is not None else {}
        self.setVisible(any(value is not None for value in told.values()))
        if track is None:
            return
        self.heading.setText(self.tr("Serving") if track.serves else self.tr("Step"))
        for field, value in self.values.items():
            is_shown = told[field] is not None or not (track.serves or field in OF_SERVERS)
            value.setText(written(field, told[field]))
            for one in (self.names[field], value):
                one.setVisible(is_shown)
                one.setToolTip(sentence_of(field, served=track.serves))
