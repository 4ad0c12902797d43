"""A run that is launched again from its page: how far it is stands above the run, and what it asks is asked over it."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Question as Asked
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.restart_job import RestartJob
from torchyard_gui.widgets import NoticeBar
from torchyard_gui.widgets.advice import as_sentence
from torchyard_gui.widgets.dialogs import Question, yes_to


class Restarting(QObject):
    """One at a time. `cancel` takes it back at any moment until the new run is on its way."""

    run_started = Signal(str)
    """The new run's ID: it is on its way."""
    launch_over = Signal(bool)
    """It has ended, with a run that is or may be on its way (true) or with nothing left of it."""

    def __init__(self, fleet_model: FleetModel, notice: NoticeBar, page: QWidget):
        super().__init__(page)
        self.job: RestartJob | None = None
        self.run_name = ""
        """What is launched again, or was last."""
        self._model = fleet_model
        self._notice = notice
        self._page = page
        self._question: Question | None = None

    @property
    def is_launching(self) -> bool:
        return self.job is not None and not self.job.is_over

    def launch(self, run: KnownRun, text: str, file: str) -> None:
        """Begins. `text` is the topology as it was run, from `file`. While another goes on, nothing is begun."""
        if self.is_launching:
            return
        if self.job is not None:
            self.job.deleteLater()
        self.run_name = run.name
        said = self.tr("{name} is launched again …").format(name=run.name)
        self._notice.show_notice("info", said, self.tr("Cancel"), closable=False)
        job = RestartJob(run, text, file, self._model, parent=self)
        job.checked.connect(self._checked)
        job.asked.connect(self._asked)
        job.started.connect(self._started)
        job.failed.connect(self._failed)
        job.cancelled.connect(self._cancelled)
        self.job = job
        job.start()

    def cancel(self) -> None:
        """Takes it back."""
        if self.job is not None and self.is_launching:
            self.job.cancel()
            if self._question is not None:
                self._question.reject()
            self._notice.show_notice("info", self.tr("Taking it back …"), closable=False)

    def close_launch(self) -> None:
        """For a window that closes: what is under way is taken back, and nothing is shown any more."""
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
        dialog = Question(question.question, as_sentence(question.message), yes, no, self._page)
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
        self._notice.show_notice("fail", as_sentence(error.message, error.hint))
        self.launch_over.emit(error.code == "start_unknown")

    def _cancelled(self) -> None:
        self._notice.show_notice("info", self.tr("Taken back: nothing is left on the hosts"))
        self.launch_over.emit(False)
