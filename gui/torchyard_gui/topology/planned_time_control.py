"""*When: now, 8 h*: the one control that says what "free" means on the page."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication, QPoint
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QPushButton, QWidget

from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.theme.icons import icon

if TYPE_CHECKING:
    from torchyard_gui.topology.when_popup import WhenPopup


class WhenControl(QPushButton):
    """Shows the planned time; a press, or Space, opens the panel that changes it."""

    def __init__(self, planning: PlanningTime, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._planning = planning
        self._is_short = False
        self.clicked.connect(self.open)
        planning.changed.connect(self.refresh)
        self.refresh()

    @cached_property
    def popup(self) -> WhenPopup:
        """Made when it is first opened."""
        from torchyard_gui.topology.when_popup import WhenPopup

        return WhenPopup(self._planning, self)

    def open(self) -> None:
        """Asks for another time, below the button."""
        popup = self.popup
        popup.adjustSize()
        right = self.mapToGlobal(QPoint(self.width() - popup.width(), self.height() + 4))
        left = self.mapToGlobal(QPoint(0, self.height() + 4))
        screen = self.screen().availableGeometry()
        popup.ask(left if left.x() + popup.width() <= screen.right() else right)

    def set_short(self, is_short: bool) -> None:
        """The time alone, where there is little room."""
        if is_short != self._is_short:
            self._is_short = is_short
            self.refresh()

    def refresh(self) -> None:
        """As it is planned now."""
        planning = self._planning
        named = self.tr("When: {when}").format(when=planning.words)
        self.setText(planning.words if self._is_short else named)
        told = self.tr("What “free” means on this page: GPUs that others have booked for some of this time are taken.")
        if planning.planned.is_later:
            told += " " + self.tr("Launching books the GPUs, and the run starts by itself then.")
        if planning.away:
            told += " " + self.tr("The calendar is away: its bookings are as of {time}.").format(time=planning.away)
        self.setToolTip(told)
        self.setAccessibleName(named)
        self.setAccessibleDescription(told)
        self.setIcon(icon("warning" if planning.away else "clock"))


def name_launch(launch: QAction, planning: PlanningTime) -> None:
    """What launching is called, and does, for the planned time."""
    tr = QCoreApplication.translate
    if planning.planned.is_later:
        text = tr("Topology", "Book and launch …")
        tip = tr("Topology", "Book the GPUs for {when}; the run starts by itself then").format(when=planning.words)
    else:
        text, tip = tr("Topology", "Launch …"), tr("Topology", "Run this topology on its hosts")
    keys = launch.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
    if launch.text() != text:
        launch.setText(text)
    launch.setToolTip(f"{tip} ({keys})")
