"""The actions of the Runs page."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QKeySequence

from torchyard_gui.theme.icons import icon

MENU = "menu"


class RunsActions(QObject):
    """QActions. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        tr = self.tr
        self.stop = self._make(tr("Stop …"), "stop", "Ctrl+.", "run", tr("Stop this run on all its hosts. Asks first"))
        self.restart = self._make(
            tr("Restart"), "refresh", "Ctrl+Shift+R", "run", tr("Launch this run again from its newest checkpoint")
        )
        self.fetch = self._make(
            tr("Fetch …"), "download", "Ctrl+Shift+F", "run", tr("Download the outputs and logs of this run")
        )
        self.copy = self._make(
            tr("Edit a copy"), "duplicate", "Ctrl+Shift+E", "run", tr("Open the topology of this run as a new one")
        )
        self.booking = self._make(
            tr("Booking"), "calendar", "Ctrl+Shift+B", "view", tr("Go to the booking of this run")
        )
        self.refresh = self._make(
            tr("Refresh the runs"), "refresh", "F5", "view", tr("Ask all hosts for the runs that they know of")
        )
        self.hosts = self._make(tr("Run by hosts"), "topology", "Alt+1", "view", tr("The run on its hosts, live"))
        self.table = self._make(tr("Run as a table"), "table", "Alt+2", "view", tr("All replicas with their numbers"))
        self.plots = self._make(tr("Run in plots"), "chart", "Alt+3", "view", tr("Curves of the chosen replicas"))
        self.log = self._make(tr("Show or hide the log"), "log", "Ctrl+L", "view", tr("What replicas print"))
        self.find = self._make(tr("Find in the log"), "search", "Ctrl+F", "edit", tr("Search the log that is shown"))

    @property
    def all(self) -> list[QAction]:
        """Returns the actions in menu order."""
        return [
            self.stop,
            self.restart,
            self.fetch,
            self.copy,
            self.booking,
            self.refresh,
            self.hosts,
            self.table,
            self.plots,
            self.log,
            self.find,
        ]

    def _make(self, text: str, icon_name: str, shortcut: str, menu: str, tip: str) -> QAction:
        action = QAction(icon(icon_name), text, self)
        action.setShortcut(QKeySequence(shortcut))
        action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        action.setToolTip(f"{tip} ({action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)})")
        action.setStatusTip(tip)
        action.setProperty(MENU, menu)
        return action
