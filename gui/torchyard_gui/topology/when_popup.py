"""Asks for when is planned: now or a time, and for how long."""

from __future__ import annotations

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.planned_time import PlannedTime, read_planned
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.widgets.advice import as_sentence
from torchyard_gui.widgets.form_row import FormRow
from torchyard_gui.widgets.popup import Popup
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import label

WIDTH = 316
LENGTHS = ("1h", "4h", "8h", "24h", "72h")


class WhenPopup(Popup):
    """Start and length, read when somebody agrees."""

    def __init__(self, planning: PlanningTime, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName(self.tr("When is planned"))
        self.setFixedWidth(WIDTH)
        self._planning = planning
        self.start = QLineEdit()
        self.start.setPlaceholderText("now")
        self.lasts = QLineEdit()
        self.start_row = FormRow(self.tr("From"), self.start, " ", name_width=56)
        self.lasts_row = FormRow(self.tr("For"), self.lasts, name_width=56)
        self.lengths = [QPushButton(length.replace("h", " h")) for length in LENGTHS]
        lengths = QHBoxLayout()
        lengths.setSpacing(4)
        lengths.setContentsMargins(56, 0, 0, 0)
        for length, button in zip(LENGTHS, self.lengths, strict=True):
            button.setAccessibleName(self.tr("For {length}").format(length=button.text()))
            button.clicked.connect(lambda checked=False, length=length: self.lasts.setText(length))
            button.setProperty("quiet", True)
            lengths.addWidget(button)
        lengths.addStretch()
        self.ok = QPushButton(self.tr("Plan for it"))
        self.ok.setProperty("primary", True)
        self.ok.clicked.connect(self.agree)
        self.usual = QPushButton(self.tr("Now, {length}").format(length="8 h"))
        self.usual.setToolTip(self.tr("The usual: now, for eight hours"))
        self.usual.clicked.connect(self._take_usual)
        foot = QHBoxLayout()
        foot.setSpacing(8)
        foot.addWidget(self.usual)
        foot.addStretch()
        foot.addWidget(self.ok)
        rows = QVBoxLayout(self)
        rows.setContentsMargins(14, 12, 14, 12)
        rows.setSpacing(8)
        rows.addWidget(label(self.tr("When"), role="title"))
        said = self.tr("GPUs that others have booked for some of this time are not free.")
        rows.addWidget(label(said, role="small", ink="2", wrap=True))
        rows.addWidget(self.start_row)
        rows.addWidget(self.lasts_row)
        rows.addLayout(lengths)
        rows.addSpacing(2)
        rows.addLayout(foot)

    def ask(self, place: QPoint) -> None:
        """Opens at a place of the screen."""
        planning = self._planning
        self.start.setText(planning.planned.start_words(planning.zone))
        self.lasts.setText(planning.planned.length_words)
        zone = self.tr("now, 18:30, tomorrow 9, 2026-11-23 09:00; of {zone}").format(zone=planning.zone)
        self.start_row.set_note(zone)
        self.lasts_row.set_problem("")
        self.open_at(place, self.start)
        self._fit()

    def agree(self) -> None:
        planning = self._planning
        self.start_row.set_problem("")
        self.lasts_row.set_problem("")
        try:
            read_planned("now", self.lasts.text(), planning.zone, planning.now)
        except Refused as refused:
            self._refuse(self.lasts_row, refused)
            return
        try:
            planned = read_planned(self.start.text(), self.lasts.text(), planning.zone, planning.now)
        except Refused as refused:
            self._refuse(self.start_row, refused)
            return
        self._choose(planned)

    def _refuse(self, row: FormRow, refused: Refused) -> None:
        row.set_problem(as_sentence(refused.message[:1].upper() + refused.message[1:], refused.hint))
        row.field.setFocus()
        announce(self, f"{row.name.text()}: {row.problem}", urgent=True)
        self._fit()

    def _fit(self) -> None:
        """As high as what it says needs: a row's note that has just changed has not yet asked for its room."""
        for part in (self.start_row, self.lasts_row, self):
            part.ensurePolished()
            if (layout := part.layout()) is not None:
                layout.invalidate()
                layout.activate()
            part.updateGeometry()
        whole = self.layout()
        if whole is not None:
            self.resize(WIDTH, whole.totalHeightForWidth(WIDTH))

    def _take_usual(self) -> None:
        self._choose(PlannedTime())

    def _choose(self, planned: PlannedTime) -> None:
        self.hide()
        self._planning.choose(planned)
