"""The actions of the Fleet page with text, shortcut and menu."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QKeySequence

from torchyard_gui.theme.icons import icon

MENU = "menu"


class FleetActions(QObject):
    """QActions, named as their buttons. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        self.add = self._make(
            self.tr("Add host …"), self.tr("Add …"), "plus", "Ctrl+Shift+H", self.tr("Write a host into the fleet file")
        )
        self.check = self._make(
            self.tr("Check hosts"),
            self.tr("Check"),
            "refresh",
            "Ctrl+R",
            self.tr("Log in on the selected hosts and read what they have. Changes nothing there"),
        )
        self.check_all = self._make(
            self.tr("Check all hosts"),
            self.tr("Check all"),
            "refresh",
            "F5",
            self.tr("Log in on every host and read what it has. Changes nothing there"),
        )
        self.deploy = self._make(
            self.tr("Deploy the agent"),
            self.tr("Deploy"),
            "upload",
            "Ctrl+Shift+D",
            self.tr("Put the agent on the selected hosts, or bring it up to date there. Runs go on"),
        )
        self.trust = self._make(
            self.tr("Trust host key …"),
            self.tr("Trust …"),
            "key",
            "Ctrl+Shift+K",
            self.tr("Look at the key that the host shows, and record it once you have compared it"),
        )
        self.remove = self._make(
            self.tr("Remove from the fleet …"),
            self.tr("Remove …"),
            "trash",
            "Delete",
            self.tr("Take the selected hosts out of the fleet file. The agent stays on them"),
        )
        self.remove.setProperty("danger", True)
        self.cancel = self._make(
            self.tr("Cancel checks and deploys"),
            self.tr("Cancel"),
            "close",
            "Escape",
            self.tr("Cancel the activity on the selected hosts, or on all"),
        )
        self.copy = self._make(
            self.tr("Copy the command that checks"),
            self.tr("Copy command"),
            "copy",
            "Ctrl+Shift+C",
            self.tr("Copy the command line that does the same as Check"),
        )
        self.search = self._make(
            self.tr("Find a host"),
            self.tr("Find"),
            "search",
            "Ctrl+F",
            self.tr("Search by name, address, label or state"),
        )

    def all(self) -> list[QAction]:
        """Returns the actions in menu order."""
        return [
            self.add,
            self.check,
            self.check_all,
            self.deploy,
            self.trust,
            self.remove,
            self.cancel,
            self.copy,
            self.search,
        ]

    def connect_to(self, calls: dict[QAction, Callable[[], object]]) -> None:
        for action, call in calls.items():
            action.triggered.connect(lambda checked=False, call=call: call())

    def _make(self, text: str, short: str, icon_name: str, shortcut: str, tip: str) -> QAction:
        action = QAction(icon(icon_name), text, self)
        action.setIconText(short)
        action.setShortcut(QKeySequence(shortcut))
        # Restricted to the page: Delete and Escape have other meanings elsewhere.
        action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        action.setToolTip(f"{tip} ({action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)})")
        action.setProperty(MENU, "edit" if shortcut in ("Delete", "Ctrl+Shift+C", "Ctrl+F") else "run")
        return action
