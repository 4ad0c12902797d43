"""Adds workers to a live run on the Runs page: asks for the host, and then shows the progress above the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QComboBox, QDialog, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.topology.model import OnWorkerLoss, Role, StrategyKind, Topology
from torchyard_gui.widgets import FormRow, NoticeBar, label
from torchyard_gui.widgets.dialogs import WIDTH, DialogButtons, dialog_layout
from torchyard_gui.widgets.input_fields import NumberField

if TYPE_CHECKING:
    from torchyard_core.launch.growth import AddedWorkers
    from torchyard_core.launch.runs.known_runs import KnownRun
    from torchyard_gui.bridge.runs_model import GrowthJob, RunsModel

MOST = 1000


def can_grow(topology: Topology) -> bool:
    """Returns whether workers can be added to a run during training. The strategy must be `all_reduce`, and must
    continue after the loss of a worker.
    """
    strategy = topology.strategy
    return strategy.kind is StrategyKind.ALL_REDUCE and strategy.on_worker_loss is OnWorkerLoss.CONTINUE


class AddWorkersDialog(QDialog):
    """Dialog that asks for the host and the number of new workers. Show it with `open()`."""

    confirmed = Signal(str, int, str)
    """Emitted with the host, the number of workers, and their pool."""

    def __init__(self, name: str, hosts: Sequence[str], topology: Topology, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Add workers to {name}").format(name=name))
        self.setMinimumWidth(WIDTH)
        sentence = self.tr("They take the state of another worker at a step boundary. The run continues meanwhile.")
        self.host = QComboBox()
        self.host.addItems(list(hosts))
        self.count = NumberField()
        self.count.setRange(1, MOST)
        self.pool = QComboBox()
        self.pool.addItems([pool.name for pool in topology.pools if pool.role is Role.WORKER])
        rows = [FormRow(self.tr("Host"), self.host), FormRow(self.tr("Workers"), self.count)]
        if self.pool.count() > 1:
            rows.append(FormRow(self.tr("Pool"), self.pool))
        self.buttons = DialogButtons(self, self.tr("Add"))
        self.buttons.agree.setDefault(True)
        self.buttons.agree.setEnabled(bool(hosts))
        self.accepted.connect(self._confirm)
        dialog_layout(self, label(sentence, ink="2", wrap=True), 2, *rows, 6, self.buttons, spacing=8)
        self.host.setFocus()

    def _confirm(self) -> None:
        self.confirmed.emit(self.host.currentText(), self.count.value(), self.pool.currentText())


class GrowthFlow(QObject):
    """Adds workers to at most one run at a time. Until the workers have joined the run, `cancel` reverts the
    addition.
    """

    def __init__(self, model: RunsModel, notice: NoticeBar, page: QWidget):
        super().__init__(page)
        self._model = model
        self._notice = notice
        self._job: GrowthJob | None = None

    @property
    def is_adding(self) -> bool:
        return self._job is not None and not self._job.is_finished

    def add(self, run: KnownRun, name: str, host: str, count: int, pool: str) -> None:
        """Adds workers, unless an earlier addition is still in progress. `name` is the run's name in messages."""
        if self.is_adding:
            return
        beginning = self.tr("Adding workers on {host} to {run} …").format(host=host, run=name)
        self._notice.show_notice("info", beginning, self.tr("Cancel"), closable=False)

        def done(added: AddedWorkers | None) -> None:
            self._model.refresh()
            if added is None:
                self._notice.show_notice("info", self.tr("{run} continues as it was").format(run=name))
                return
            one, many = self.tr("{names} has joined {run}"), self.tr("{names} have joined {run}")
            text = (one if len(added.names) == 1 else many).format(names=", ".join(added.names), run=name)
            self._notice.show_notice("info", text)

        def failed(error: TorchyardError) -> None:
            self._notice.show_error(error)

        self._job = self._model.grow(run, host, count, pool, done, failed, owner=self)

    def cancel(self) -> None:
        """Cancels the addition, unless the workers have joined the run."""
        if self._job is not None and self.is_adding:
            self._job.cancel()
            self._notice.show_notice("info", self.tr("Cancelling …"), closable=False)
