"""The actions of the Fleet page, with text, shortcut and menu."""

from __future__ import annotations

from PySide6.QtCore import QObject

from torchyard_gui.widgets.page_actions import PageActions


class FleetActions(PageActions):
    """QActions with the names of their buttons. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        tr = self.tr
        tip = tr("Write a host into the fleet file")
        self.add = self._make("run", tr("Add host …"), "plus", "Ctrl+Shift+H", tip, tr("Add …"))
        tip = tr("Log in on the selected hosts and read what they have. Changes nothing there")
        self.check = self._make("run", tr("Check hosts"), "refresh", "Ctrl+R", tip, tr("Check"))
        tip = tr("Log in on every host and read what it has. Changes nothing there")
        self.check_all = self._make("run", tr("Check all hosts"), "refresh", "F5", tip, tr("Check all"))
        tip = tr("Put the agent on the selected hosts, or bring it up to date there. Runs go on")
        self.deploy = self._make("run", tr("Deploy the agent"), "upload", "Ctrl+Shift+D", tip, tr("Deploy"))
        tip = tr("Look at the key that the host shows, and record it once you have compared it")
        self.trust = self._make("run", tr("Trust host key …"), "key", "Ctrl+Shift+K", tip, tr("Trust …"))
        tip = tr("Take the selected hosts out of the fleet file. The agent stays on them")
        self.remove = self._make("edit", tr("Remove from the fleet …"), "trash", "Delete", tip, tr("Remove …"))
        self.remove.setProperty("danger", True)
        tip = tr("Cancel the activity on the selected hosts, or on all")
        self.cancel = self._make("run", tr("Cancel checks and deploys"), "close", "Escape", tip, tr("Cancel"))
        tip = tr("Copy the command line that does the same as Check")
        copy = tr("Copy the command that checks")
        self.copy = self._make("edit", copy, "copy", "Ctrl+Shift+C", tip, tr("Copy command"))
        tip = tr("Search by name, address, label or state")
        self.search = self._make("edit", tr("Find a host"), "search", "Ctrl+F", tip, tr("Find"))
