"""The actions of the Runs page."""

from __future__ import annotations

from PySide6.QtCore import QObject

from torchyard_gui.widgets.page_actions import PageActions


class RunsActions(PageActions):
    """QActions with text, shortcut and menu. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        tr = self.tr
        self.stop = self._make("run", tr("Stop …"), "stop", "Ctrl+.", tr("Stop this run on all its hosts. Asks first"))
        tip = tr("Launch this run again, from a checkpoint or from the beginning. Asks first")
        self.restart = self._make("run", tr("Restart …"), "refresh", "Ctrl+Shift+R", tip)
        tip = tr("Add workers to this run while it trains. Asks for the host first")
        self.grow = self._make("run", tr("Add workers …"), "plus", "Ctrl+Alt+W", tip)
        tip = tr("Download the outputs and logs of this run")
        self.fetch = self._make("run", tr("Fetch …"), "download", "Ctrl+Shift+F", tip)
        tip = tr("Download only the model of this run's newest checkpoint, as one file that torch.load reads")
        self.fetch_model = self._make("run", tr("Fetch model …"), "download", "Ctrl+Alt+F", tip)
        tip = tr("Open the topology of this run as a new one")
        self.copy = self._make("run", tr("Edit a copy"), "duplicate", "Ctrl+Shift+E", tip)
        tip = tr("Write a note about this run, and tags to find it by")
        self.notes = self._make("run", tr("Notes and tags …"), "edit", "Ctrl+Shift+N", tip)
        tip = tr("Compare the curves of the selected runs, or of one run with the last other run of its name")
        self.compare = self._make("view", tr("Compare runs"), "chart", "Alt+4", tip)
        tip = tr("Go to the booking of this run")
        self.booking = self._make("view", tr("Booking"), "calendar", "Ctrl+Shift+B", tip)
        tip = tr("Reload the list of runs from all hosts")
        self.refresh = self._make("view", tr("Refresh the runs"), "refresh", "F5", tip)
        self.hosts = self._make("view", tr("Show hosts"), "topology", "Alt+1", tr("The run on its hosts, live"))
        self.table = self._make("view", tr("Show replicas"), "table", "Alt+2", tr("A table of all replicas"))
        self.plots = self._make("view", tr("Show plots"), "chart", "Alt+3", tr("Curves of the selected replicas"))
        self.log = self._make("view", tr("Show or hide the log"), "log", "Ctrl+L", tr("Output of the replicas"))
        self.find = self._make("edit", tr("Find in the log"), "search", "Ctrl+F", tr("Search this log"))
