"""Shows the progress and the questions of a launch in a notice bar on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QWidget

from torchyard_gui.widgets.dialogs import ConfirmationDialog, yes_to
from torchyard_gui.widgets.next_steps import as_sentence
from torchyard_gui.widgets.notice_bar import NoticeBar

if TYPE_CHECKING:
    from torchyard_core.errors import TorchyardError
    from torchyard_core.launch.checks.check import Check
    from torchyard_core.launch.confirmations import Confirmation as Asked
    from torchyard_gui.bridge.launch_job import LaunchJob


class LaunchFlow(QObject):
    """Runs at most one launch at a time. Until the new run has started, `cancel` reverts the launch."""

    run_started = Signal(str)
    """Emitted with the ID of the new run when it has started."""
    launch_over = Signal(bool)
    """Emitted when the launch has ended, with True if the new run has started or may have started."""

    def __init__(self, notice: NoticeBar, cancelled_text: str, page: QWidget):
        """Creates the flow. After a cancellation, `cancelled_text` is shown."""
        super().__init__(page)
        self.job: LaunchJob | None = None
        self.run_name = ""
        """Name of the run in the current launch or, if there is none, in the last one."""
        self._notice = notice
        self._cancelled_text = cancelled_text
        self._page = page
        self._question: ConfirmationDialog | None = None

    @property
    def is_launching(self) -> bool:
        return self.job is not None and not self.job.is_over

    def begin(self, job: LaunchJob, run_name: str, text: str) -> None:
        """Starts a job and shows `text` until the job has ended. No other launch may be in progress."""
        if self.job is not None:
            self.job.deleteLater()
        self.run_name = run_name
        self._notice.show_notice("info", text, self.tr("Cancel"), closable=False)
        job.checked.connect(self._checked)
        job.asked.connect(self._asked)
        job.started.connect(self._started)
        job.failed.connect(self._failed)
        job.cancelled.connect(self._cancelled)
        self.job = job
        job.start()

    def cancel(self) -> None:
        """Cancels the launch, and reverts what it has done."""
        if self.job is not None and self.is_launching:
            self.job.cancel()
            if self._question is not None:
                self._question.reject()
            self._notice.show_notice("info", self.tr("Cancelling …"), closable=False)

    def close_launch(self) -> None:
        """Cancels the launch without further messages. Called when the window closes."""
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
        self.show_failure(error)
        self.launch_over.emit(error.code == "start_unknown")

    def show_failure(self, error: TorchyardError) -> None:
        """Shows why the launch has failed."""
        self._notice.show_error(error)

    def _cancelled(self) -> None:
        self._notice.show_notice("info", self._cancelled_text)
        self.launch_over.emit(False)
