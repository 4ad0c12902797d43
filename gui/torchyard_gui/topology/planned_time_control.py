"""The control *When: now, 8 h*, with which the user sets the planned time. GPUs must be free during this time."""

from __future__ import annotations

from functools import cached_property

from PySide6.QtCore import QCoreApplication, QPoint
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QLineEdit, QPushButton, QWidget

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.planned_time import PlannedTime, parse_planned_time
from torchyard_core.fleet.cluster import Cluster
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import Popup
from torchyard_gui.widgets.form_row import FormRow
from torchyard_gui.widgets.layouts import hbox, vbox
from torchyard_gui.widgets.next_steps import as_sentence
from torchyard_gui.widgets.page_actions import tip_with_shortcut
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import label


class PlannedTimeControl(QPushButton):
    """Button that shows the planned time. A click or Space opens a popup to change it."""

    def __init__(self, planning: PlanningTime, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._planning = planning
        self._is_short = False
        self._is_on_cluster = False
        self.clicked.connect(self.open)
        planning.changed.connect(self.refresh)
        self.refresh()

    @cached_property
    def popup(self) -> PlannedTimePopup:
        """The popup that changes the planned time. It is created on first use."""
        return PlannedTimePopup(self._planning, self)

    def open(self) -> None:
        """Opens the popup below the button."""
        popup = self.popup
        popup.adjustSize()
        right = self.mapToGlobal(QPoint(self.width() - popup.width(), self.height() + 4))
        left = self.mapToGlobal(QPoint(0, self.height() + 4))
        screen = self.screen().availableGeometry()
        popup.ask(left if left.x() + popup.width() <= screen.right() else right)

    def set_short(self, is_short: bool) -> None:
        """Sets whether the button shows only the time, to save space."""
        if is_short != self._is_short:
            self._is_short = is_short
            self.refresh()

    def set_on_cluster(self, is_on_cluster: bool) -> None:
        """Sets whether the page plans for a cluster, whose GPUs a launch does not book."""
        if is_on_cluster != self._is_on_cluster:
            self._is_on_cluster = is_on_cluster
            self.refresh()

    def refresh(self) -> None:
        planning = self._planning
        named = self.tr("When: {when}").format(when=planning.words)
        self.setText(planning.words if self._is_short else named)
        tip = self.tr("The time that this page plans for. GPUs that others have booked for part of it count as taken.")
        if self._is_on_cluster:
            tip = self.tr("The earliest start of the job. Slurm allocates its nodes; the length has no effect.")
            tip += " " + self.tr("In the time of your own booking of enough nodes, the job runs in it.")
        elif planning.planned.is_later:
            tip += " " + self.tr("A launch books the GPUs, and the run starts automatically at that time.")
        if planning.away and not self._is_on_cluster:
            tip += " " + self.tr("The calendar does not answer; bookings are as of {time}.").format(time=planning.away)
        self.setToolTip(tip)
        self.setAccessibleName(named)
        self.setAccessibleDescription(tip)
        self.setIcon(icon("warning" if planning.away else "clock"))


def name_launch(launch: QAction, planning: PlanningTime, cluster: Cluster | None = None, reason: str = "") -> None:
    """Sets the text, its short form and the tool tip of the launch action according to the planned time and place.

    Args:
        cluster: The cluster on which the run takes place; None for the hosts of the fleet file.
        reason: Why the topology cannot be launched, or "" if it can. The tool tip shows the reason.
    """
    tr = QCoreApplication.translate
    if cluster is not None:
        text = short = tr("Topology", "Launch …")
        tip = tr("Topology", "Submit this topology to the Slurm cluster {cluster}").format(cluster=cluster.name)
        if planning.planned.is_later:
            tip += tr("Topology", "; its job starts {when} at the earliest").format(when=planning.start_words)
    elif planning.planned.is_later:
        text, short = tr("Topology", "Book and launch …"), tr("Topology", "Book …")
        tip = tr("Topology", "Book the GPUs for {when}; the run starts automatically then").format(when=planning.words)
    else:
        text = short = tr("Topology", "Launch …")
        tip = tr("Topology", "Run this topology on its hosts")
    if (launch.text(), launch.iconText()) != (text, short):
        launch.setText(text)
        launch.setIconText(short)
    launch.setToolTip(tip_with_shortcut(launch, reason or tip))


WIDTH = 316
LENGTHS = ("1h", "4h", "8h", "24h", "72h")


class PlannedTimePopup(Popup):
    """Popup with fields for start and length, which are parsed when the user confirms."""

    def __init__(self, planning: PlanningTime, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName(self.tr("Planned time"))
        self.setFixedWidth(WIDTH)
        self._planning = planning
        self.start = QLineEdit(placeholderText="now")
        self.lasts = QLineEdit()
        self.start_row = FormRow(self.tr("From"), self.start, " ", name_width=56)
        self.lasts_row = FormRow(self.tr("For"), self.lasts, name_width=56)
        self.lengths = [
            push_button(length.replace("h", " h"), lambda _, length=length: self.lasts.setText(length), "quiet")
            for length in LENGTHS
        ]
        for button in self.lengths:
            button.setAccessibleName(self.tr("For {length}").format(length=button.text()))
        lengths = hbox(*self.lengths, None, margins=(56, 0, 0, 0), spacing=4)
        self.ok = push_button(self.tr("Plan for this time"), self.agree, "primary")
        now, tip = self.tr("Now, {length}").format(length="8 h"), self.tr("The default: now, for eight hours")
        self.usual = push_button(now, lambda: self._choose(PlannedTime()), tip=tip)
        foot = hbox(self.usual, None, self.ok, spacing=8)
        hint = self.tr("GPUs that others have booked for part of this time are not free.")
        head = label(self.tr("When"), role="title"), label(hint, role="small", ink="2", wrap=True)
        fields = self.start_row, self.lasts_row, lengths
        vbox(*head, *fields, 2, foot, parent=self, margins=(14, 12, 14, 12), spacing=8)

    def ask(self, place: QPoint) -> None:
        """Fills the fields and opens the popup at a screen position."""
        planning = self._planning
        self.start.setText(planning.planned.start_words(planning.zone))
        self.lasts.setText(planning.planned.length_words)
        zone = self.tr("now, 18:30, tomorrow 9, 2026-11-23 09:00; in {zone}").format(zone=planning.zone)
        self.start_row.set_note(zone)
        self.lasts_row.set_problem("")
        self.open_at(place, self.start)
        self._fit()

    def agree(self) -> None:
        planning = self._planning
        self.start_row.set_problem("")
        self.lasts_row.set_problem("")
        try:
            parse_planned_time("now", self.lasts.text(), planning.zone, planning.now)
        except Refused as refused:
            self._refuse(self.lasts_row, refused)
            return
        try:
            planned = parse_planned_time(self.start.text(), self.lasts.text(), planning.zone, planning.now)
        except Refused as refused:
            self._refuse(self.start_row, refused)
            return
        self._choose(planned)

    def _refuse(self, row: FormRow, refused: Refused) -> None:
        row.set_problem(as_sentence(refused.message[:1].upper() + refused.message[1:], refused.advice))
        row.field.setFocus()
        announce(self, f"{row.name.text()}: {row.problem}", urgent=True)
        self._fit()

    def _fit(self) -> None:
        """Resizes the popup to its content. The size hint of the note is updated first, because its text may have
        changed.
        """
        for part in (self.start_row, self.lasts_row, self):
            part.ensurePolished()
            if (layout := part.layout()) is not None:
                layout.invalidate()
                layout.activate()
            part.updateGeometry()
        whole = self.layout()
        if whole is not None:
            self.resize(WIDTH, whole.totalHeightForWidth(WIDTH))

    def _choose(self, planned: PlannedTime) -> None:
        self.hide()
        self._planning.choose(planned)
