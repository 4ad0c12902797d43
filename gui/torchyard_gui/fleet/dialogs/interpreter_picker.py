"""A list of the Python interpreters on hosts, with their torch and CUDA versions, from which the user chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QProgressBar, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.theme.icons import state_icon
from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.widgets import NoticeBar
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox

MOST_ROWS = 4
"""Maximum number of interpreters that are visible without scrolling."""
ROW = 2 * METRICS.line + 8
Found = dict[str, Any]
"""A Python interpreter, as described in the answer to the request `host.pythons`."""


class InterpreterPicker(QWidget):
    """List of interpreters with a button that starts a search. A search starts only on request, because it runs every
    interpreter on the hosts.
    """

    chosen = Signal(str)
    """Emitted with the path of the chosen interpreter."""
    resized = Signal()

    def __init__(self, model: FleetModel, names: Sequence[str], parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._names = list(names)
        self._jobs: list[Job] = []
        self._found: dict[str, list[Found]] = {}
        self.button = push_button(self.tr("Find interpreters"), self.search)
        self.button.setAutoDefault(False)
        self.button.setToolTip(self.tr("List the interpreters on the host, with their torch and CUDA"))
        self.progress = QProgressBar()
        self.progress.setRange(0, 0)
        self.notice = NoticeBar()
        self.list = _List()
        self.list.setAccessibleName(self.tr("Interpreters"))
        self.list.itemClicked.connect(self._choose)
        self.list.itemActivated.connect(self._choose)
        vbox(hbox(self.button, None), self.progress, self.notice, self.list, parent=self, margins=FLUSH, spacing=6)
        self._show(busy=False)

    def search(self) -> None:
        self.cancel()
        self.notice.clear()
        self._found.clear()
        self._show(busy=True)
        self._jobs = [
            self._model.find_interpreters(name, partial(self._arrived, name), self._failed, owner=self)
            for name in self._names
        ]

    def cancel(self) -> None:
        for job in self._jobs:
            job.cancel()

    def _arrived(self, name: str, found: list[Found]) -> None:
        self._found[name] = found
        if len(self._found) < len(self._names):
            return
        self.list.clear()
        paths = dict.fromkeys(one["path"] for found in self._found.values() for one in found)
        for path in sorted(paths, key=lambda path: not self._is_usable(path)):
            self.list.addItem(self._item(path))
        self._show(busy=False)
        self.list.setCurrentRow(0)
        self.list.setFocus(Qt.FocusReason.OtherFocusReason)

    def _failed(self, error: TorchyardError) -> None:
        self.cancel()
        self.notice.show_error(error, closable=False)
        self._show(busy=False)

    def _item(self, path: str) -> QListWidgetItem:
        having = [one for found in self._found.values() for one in found if one["path"] == path]
        texts = " / ".join(dict.fromkeys(map(interpreter_text, having)))
        if len(having) < len(self._names):
            some = self.tr("only on {count} of {hosts} hosts")
            texts += " · " + some.format(count=len(having), hosts=len(self._names))
        item = QListWidgetItem(state_icon("ok" if self._is_usable(path) else "warning"), f"{path}\n{texts}")
        item.setData(Qt.ItemDataRole.UserRole, path)
        item.setToolTip(item.text())
        return item

    def _is_usable(self, path: str) -> bool:
        """Returns whether the interpreter exists on every host and has torch."""
        having = [one for found in self._found.values() for one in found if one["path"] == path]
        return all(one["torch"] for one in having) and len(having) == len(self._names)

    def _choose(self, item: QListWidgetItem) -> None:
        self.chosen.emit(item.data(Qt.ItemDataRole.UserRole))

    def _show(self, *, busy: bool) -> None:
        self.progress.setVisible(busy)
        self.button.setEnabled(not busy)
        rows = self.list.count()
        self.list.setVisible(bool(rows) and not busy)
        self.list.setFixedHeight(ROW * min(rows, MOST_ROWS) + 4)
        self.resized.emit()


def interpreter_text(found: Found) -> str:
    """Returns the versions of an interpreter, such as `Python 3.12.1 · torch 2.6.0 · CUDA 12.4`, or its problem."""
    if found["problem"]:
        return str(found["problem"])
    python = f"Python {found['version']}"
    if not found["torch"]:
        return f"{python} · no torch"
    cuda = f"CUDA {found['torch_cuda']}" if found["torch_cuda"] else "CPU only"
    return f"{python} · torch {found['torch']} · {cuda}"


class _List(QListWidget):
    """List in which Enter chooses an interpreter instead of accepting the dialog."""

    def __init__(self) -> None:
        super().__init__()
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setUniformItemSizes(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        super().keyPressEvent(event)
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()
