"""Restart of a run from its page, with progress and questions above the run."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Confirmation as Asked
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.launch_job import RestartJob
from torchyard_gui.widgets import NoticeBar
from torchyard_gui.widgets.dialogs import ConfirmationDialog, yes_to
from torchyard_gui.widgets.next_steps import as_sentence


class RestartFlow(QObject):
    """Runs at most one restart at a time. `cancel` reverts it until the new run has started."""

    run_started = Signal(str)
    """The ID of the new run, which has started."""
    launch_over = Signal(bool)
    """The restart ended; True if there is, or may be, a new run."""

    def __init__(self, fleet_model: FleetModel, notice: NoticeBar, page: QWidget):
        super().__init__(page)
        self.job: RestartJob | None = None
        self.run_name = ""
        """Name of the current or last run that is restarted."""
        self._model = fleet_model
        self._notice = notice
        self._page = page
        self._question: ConfirmationDialog | None = None

    @property
    def is_launching(self) -> bool:
        return self.job is not None and not self.job.is_over

    def launch(self, run: KnownRun, text: str, file: str) -> None:
        """Starts a restart unless one is in progress.

        Args:
            text: Topology of the run.
            file: Path of the topology file.
        """
        if self.is_launching:
            return
        if self.job is not None:
            self.job.deleteLater()
        self.run_name = run.name
        sentence = self.tr("{name} is launched again …").format(name=run.name)
        self._notice.show_notice("info", sentence, self.tr("Cancel"), closable=False)
        job = RestartJob(run, text, file, self._model, parent=self)
        job.checked.connect(self._checked)
        job.asked.connect(self._asked)
        job.started.connect(self._started)
        job.failed.connect(self._failed)
        job.cancelled.connect(self._cancelled)
        self.job = job
        job.start()

    def cancel(self) -> None:
        """Cancels the restart, which reverts it."""
        if self.job is not None and self.is_launching:
            self.job.cancel()
            if self._question is not None:
                self._question.reject()
            self._notice.show_notice("info", self.tr("Taking it back …"), closable=False)

    def close_launch(self) -> None:
        """Cancels the restart and hides its messages. Called when the window closes."""
        if self.job is not None and self.is_launching:
            self.job.close()

    def _checked(self, check: Check) -> None:
        if check.name == "resume" and self.job is not None and not self.job.is_cancelled:
            self._notice.reword(check.message)

    def _asked(self, question: Asked) -> None:
        job = self.job
        if job is None or job.is_cancelled:
            return
        yes = yes_to(question.accept)
        no = self.tr("Do not launch")
        dialog = ConfirmationDialog(question.question, as_sentence(question.message), yes, no, self._page)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.accepted.connect(lambda: job.answer(True))
        dialog.rejected.connect(lambda: job.answer(False))
        dialog.finished.connect(self._answered)
        self._question = dialog
        dialog.open()

    def _answered(self) -> None:
        self._question = None

    def _started(self, run_id: str) -> None:
        self._notice.clear()
        self.run_started.emit(run_id)
        self.launch_over.emit(True)

    def _failed(self, error: TorchyardError) -> None:
        self._notice.show_error(error)
        self.launch_over.emit(error.code == "start_unknown")

    def _cancelled(self) -> None:
        self._notice.show_notice("info", self.tr("Taken back: nothing is left on the hosts"))
        self.launch_over.emit(False)
