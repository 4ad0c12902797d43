"""The actions of the Sweeps page."""

from __future__ import annotations

from PySide6.QtCore import QObject

from torchyard_gui.widgets.page_actions import PageActions


class SweepsActions(PageActions):
    """QActions with text, shortcut and menu. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        tr = self.tr
        tip = tr("Write a search file for the open topology, and start the sweep")
        self.new = self._make("run", tr("New sweep …"), "plus", "Ctrl+N", tip, tr("New …"))
        tip = tr("Stop this sweep with all its trials. Asks first")
        self.stop = self._make("run", tr("Stop the sweep …"), "stop", "Ctrl+.", tip, tr("Stop …"))
        tip = tr("Stop the selected trial, which then counts as failed. Asks first")
        self.stop_trial = self._make("run", tr("Stop the trial …"), "stop", "Ctrl+Shift+.", tip)
        tip = tr("Continue this sweep with its study until it has all its trials")
        self.resume = self._make("run", tr("Resume the sweep"), "play", "Ctrl+Shift+R", tip, tr("Resume"))
        tip = tr("Open the topology with the parameters of the best trial, as a new one")
        self.best = self._make("run", tr("Open best as topology"), "topology", "Ctrl+Shift+E", tip, tr("Open best"))
        tip = tr("Open the topology with the parameters of the selected trial, as a new one")
        self.open_trial = self._make("run", tr("Open trial as topology"), "duplicate", "Ctrl+Alt+E", tip)
        tip = tr("Copy the command that opens the study of this sweep in optuna-dashboard")
        self.dashboard = self._make("edit", tr("Copy the dashboard's command"), "copy", "Ctrl+Shift+C", tip)
        tip = tr("Copy the command that starts a sweep")
        self.command = self._make("edit", tr("Copy the command of a new sweep"), "copy", "", tip)
        tip = tr("Ask all hosts for their sweeps, and read the trials again")
        self.refresh = self._make("view", tr("Refresh the sweeps"), "refresh", "F5", tip)
