"""Restarts a run on the Runs page: asks at which step to begin, and then shows progress and questions above the run."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QButtonGroup, QDialog, QRadioButton, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.launch.runs.checkpoints import SavedStep
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.launch_job import RestartJob
from torchyard_gui.widgets import NoticeBar, label
from torchyard_gui.widgets.dialogs import WIDTH, DialogButtons, dialog_layout
from torchyard_gui.widgets.launch_flow import LaunchFlow
from torchyard_gui.widgets.layouts import hbox
from torchyard_gui.widgets.next_steps import as_sentence


class RestartDialog(QDialog):
    """Dialog that asks whether a restart begins at the newest checkpoint or at the first step. Show it with `open()`.

    If the run has no shared checkpoint folder, the caller must look for the newest checkpoint and then call
    `show_checkpoint` or `show_problem`.
    """

    confirmed = Signal(bool)
    """Emitted with True if the new run must begin at the first step."""

    def __init__(self, name: str, shared_folder: str = "", parent: QWidget | None = None):
        """Creates the dialog. `shared_folder` is the checkpoint folder that the run's hosts share, if any."""
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Restart {name}?").format(name=name))
        self.setMinimumWidth(WIDTH)
        sentence = self.tr("A new run starts with the same topology and code. The ended run stays as it is.")
        self.resume = QRadioButton(self.tr("From the newest checkpoint"))
        self.begin = QRadioButton(self.tr("From the beginning"))
        self.begin.setToolTip(self.tr("Train from the first step, without the checkpoints of the ended run"))
        self.found = label(role="small", ink="2", wrap=True)
        choices = QButtonGroup(self)
        choices.addButton(self.resume)
        choices.addButton(self.begin)
        self.resume.setChecked(True)
        self.buttons = DialogButtons(self, self.tr("Restart"))
        self.buttons.agree.setDefault(True)
        self.accepted.connect(lambda: self.confirmed.emit(self.begin.isChecked()))
        found = hbox(24, (self.found, 1), spacing=0)
        parts = self.resume, found, self.begin, 6, self.buttons
        dialog_layout(self, label(sentence, ink="2", wrap=True), 2, *parts, spacing=8)
        if shared_folder:
            self._say(self.tr("It is in {folder}.").format(folder=shared_folder))
        else:
            self._say(self.tr("Searching the hosts …"))
        self.resume.setFocus()

    def show_checkpoint(self, saved: SavedStep | None) -> None:
        """Shows the newest checkpoint of the run, or that it has none."""
        if saved is not None:
            self.resume.setText(self.tr("From the checkpoint at step {step}").format(step=f"{saved.step:,}"))
            self._say(self.tr("It is on {host}.").format(host=saved.host))
            return
        self.resume.setEnabled(False)
        self.begin.setChecked(True)
        self.begin.setFocus()
        self._say(self.tr("The run has no checkpoint."))

    def show_problem(self, error: TorchyardError) -> None:
        """Shows why the newest checkpoint is unknown. The launch will look for the checkpoint again."""
        self._say(as_sentence(error.message))

    def _say(self, text: str) -> None:
        self.found.setText(text)
        self.resume.setAccessibleDescription(text)


class RestartFlow(LaunchFlow):
    """Runs at most one restart at a time. Until the new run has started, `cancel` reverts the restart."""

    def __init__(self, fleet_model: FleetModel, notice: NoticeBar, page: QWidget):
        super().__init__(notice, page.tr("Restart cancelled; nothing is left on the hosts"), page)
        self._model = fleet_model

    def launch(self, run: KnownRun, text: str, file: str, *, from_beginning: bool = False) -> None:
        """Starts a restart unless one is in progress.

        Args:
            text: Text of the run's topology, which was read from `file`.
            from_beginning: Whether to begin at the first step instead of the newest checkpoint.
        """
        if self.is_launching:
            return
        job = RestartJob(run, text, file, self._model, self)
        job.from_beginning = from_beginning
        self.begin(job, run.name, self.tr("Restarting {name} …").format(name=run.name))
