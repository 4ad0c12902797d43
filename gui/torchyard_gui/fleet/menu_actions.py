"""The actions of the Fleet page, with text, shortcut and menu."""

from __future__ import annotations

from PySide6.QtCore import QObject

from torchyard_gui.widgets.page_actions import PageActions


class FleetActions(PageActions):
    """QActions for the menus and buttons of the page. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        tr = self.tr
        tip = tr("Add a host to the fleet file")
        self.add = self._make("run", tr("Add host …"), "plus", "Ctrl+Shift+H", tip, tr("Add …"))
        tip = tr("Add a Slurm cluster to the fleet file")
        self.add_cluster = self._make("run", tr("Add cluster …"), "plus", "Ctrl+Alt+H", tip, tr("Add cluster …"))
        tip = tr("Log in to the selected hosts and clusters and read their state. Installs nothing on hosts")
        self.check = self._make("run", tr("Check hosts"), "refresh", "Ctrl+R", tip, tr("Check"))
        tip = tr("Log in to all hosts and clusters and read their state. Installs nothing")
        self.check_all = self._make("run", tr("Check all hosts"), "refresh", "F5", tip, tr("Check all"))
        tip = tr("Install or update the agent on the selected hosts. Runs continue")
        self.deploy = self._make("run", tr("Deploy the agent"), "upload", "Ctrl+Shift+D", tip, tr("Deploy"))
        tip = tr("Change the entries of the selected hosts, or of a cluster, in the fleet file")
        self.edit = self._make("edit", tr("Edit hosts …"), "edit", "F2", tip, tr("Edit …"))
        tip = tr("Show the keys of the selected hosts, and record those that you have compared")
        self.trust = self._make("run", tr("Trust host keys …"), "key", "Ctrl+Shift+K", tip, tr("Trust …"))
        tip = tr("Open a terminal that is logged in to the selected host or login node")
        self.terminal = self._make("run", tr("Open a terminal"), "command", "Ctrl+T", tip, tr("Terminal"))
        tip = tr("Cancel the activity on the selected hosts, or on all")
        self.cancel = self._make("run", tr("Cancel checks and deploys"), "close", "Escape", tip, tr("Cancel"))
        tip = tr("Remove the agent from the selected hosts, with the logs and outputs of past runs")
        self.undeploy = self._make("run", tr("Undeploy the agent …"), "minus", "Shift+Delete", tip, tr("Undeploy …"))
        self.undeploy.setProperty("danger", True)
        tip = tr("Remove the selected hosts and clusters from the fleet file. The agent stays on them")
        self.remove = self._make("edit", tr("Remove from the fleet …"), "trash", "Delete", tip, tr("Remove …"))
        self.remove.setProperty("danger", True)
        tip = tr("Copy the command that is equivalent to Check")
        copy = tr("Copy the check command")
        self.copy = self._make("edit", copy, "copy", "Ctrl+Shift+C", tip, tr("Copy command"))
        tip = tr("Search by name, address, label or state")
        self.search = self._make("edit", tr("Find a host"), "search", "Ctrl+F", tip, tr("Find"))
        tip = tr("Undo the last edit of hosts")
        self.undo_edit = self._make("edit", tr("Undo: edit of hosts"), "undo", "Ctrl+Z", tip)
