"""Notifies the user about runs, whichever page is visible: with a message, which is also announced to screen readers,
and with an alert in the task bar.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from torchyard_core.launch.runs.known_runs import KnownRun, is_over
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.runs.run_titles import title_of
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.windows.main_window import MainWindow


class RunNotifications(QObject):
    """Reports changes in the states of runs. Runs that were never known to be live cause no messages."""

    def __init__(
        self,
        model: RunsModel,
        shown: Callable[[], str],
        window: MainWindow,
        is_reported: Callable[[str], bool] = lambda run_id: False,
    ) -> None:
        """Starts with the current states of the runs in `model`.

        Args:
            shown: Returns the ID of the visible run, or "" if none is visible.
            is_reported: Returns whether another part of the window reports the end of a run.
        """
        super().__init__(window)
        self._model = model
        self._shown = shown
        self._window = window
        self._is_reported = is_reported
        self.wanted: Callable[[], str] = lambda: "all"
        """Returns which runs to report: "all", "failures" or "none"."""
        self._states = {run.run_id: run.state for run in model.runs}

    def refresh(self) -> None:
        """Reports changes since the last call. States that were reported by hosts other than the primary's host are
        ignored.
        """
        sure = [run for run in self._model.runs if not run.reported_by]
        before, self._states = self._states, self._states | {run.run_id: run.state for run in sure}
        for run in sure:
            was = before.get(run.run_id, run.state)
            if was == run.state or is_over(was) or self._is_reported(run.run_id):
                continue
            if text := self._text(run):
                self._tell(run, text)

    def _tell(self, run: KnownRun, text: str) -> None:
        failed = run.state == "failed"
        if self.wanted() == "none" or (self.wanted() == "failures" and not failed):
            return
        if run.run_id != self._shown():
            self._window.say(text, urgent=failed)
        elif not failed:  # The Runs page already shows the reason for the failure.
            announce(self._window, text)
        if not self._window.isActiveWindow():
            QApplication.alert(self._window)

    def _text(self, run: KnownRun) -> str:
        name = title_of(run, self._model.runs)
        if run.state == "failed":
            why = run.reason or self.tr("unknown cause")
            return self.tr("{run} failed: {reason}").format(run=name, reason=why)
        words = {
            "succeeded": self.tr("{run} succeeded"),
            "stopped": self.tr("{run} was stopped"),
            "restarting": self.tr("{run} is restarting"),
        }
        return words.get(run.state, "").format(run=name)
