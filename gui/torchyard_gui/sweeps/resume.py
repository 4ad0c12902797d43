"""Resumes a sweep on the Sweeps page, and shows the progress and questions above the trials."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.launch.runs.history import History
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.launch_job import ResumeSweepJob
from torchyard_gui.widgets import NoticeBar
from torchyard_gui.widgets.launch_flow import LaunchFlow
from torchyard_gui.widgets.next_steps import as_sentence


class ResumeFlow(LaunchFlow):
    """Resumes at most one sweep at a time. If the working folder has changed, offers to resume with the changed
    files.
    """

    def __init__(self, fleet_model: FleetModel, history: History, notice: NoticeBar, page: QWidget):
        super().__init__(notice, page.tr("Cancelled; nothing is left on the hosts"), page)
        self._model = fleet_model
        self._history = history
        self._changed: KnownRun | None = None
        """The sweep that was not resumed because its working folder has changed, or None."""

    def resume(self, run: KnownRun, *, new_code: bool = False) -> None:
        """Resumes a finished sweep. Has no effect while another sweep is being resumed."""
        if self.is_launching:
            return
        self._changed = None
        record = self._history.load(run.run_id)
        text, file = (record.topology, record.topology_file) if record is not None else ("", "")
        job = ResumeSweepJob(run, text, file, self._model, self)
        job.new_code = new_code
        self._run = run
        self.begin(job, run.name, self.tr("Resuming {name} …").format(name=run.name))

    def accept_new_code(self) -> None:
        """Resumes the sweep whose working folder has changed, with the current files of the folder."""
        if self._changed is not None:
            self.resume(self._changed, new_code=True)

    def show_failure(self, error: TorchyardError) -> None:
        if error.code != "code_changed":
            super().show_failure(error)
            return
        self._changed = self._run
        advice = self.tr("Restore them, or let later trials run other code than earlier ones.")
        text = f"{as_sentence(error.message)} {advice}"
        self._notice.show_notice("fail", text, self.tr("Resume with the new files"))
