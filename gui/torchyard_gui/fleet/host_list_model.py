"""List model of the hosts that match the search and the chosen state."""

from __future__ import annotations

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import HostStatus
from torchyard_gui.fleet.labels import accessible_text, full_time, place, sentence, state_word

Index = QModelIndex | QPersistentModelIndex
STATUS = int(Qt.ItemDataRole.UserRole)
USE = STATUS + 1
"""The role that the model reports if only the use of a host has changed.

While a page shows the hosts, this happens every second.
"""


class HostListModel(QAbstractListModel):
    """Model with one row for each matching host, in the order of the fleet file."""

    def __init__(self, fleet: FleetModel, parent: QObject | None = None):
        super().__init__(parent)
        self._fleet = fleet
        self._words: list[str] = []
        self._state: HostState | None = None
        self._names: list[str] = []
        self._row_of: dict[str, int] = {}
        self._take(self._matching())
        fleet.hosts_changed.connect(self._reset)
        fleet.host_changed.connect(self._changed)
        fleet.use_changed.connect(self._used)

    def search(self, text: str) -> None:
        """Limits the rows to hosts whose name, address, labels, state and GPUs contain every word of the search."""
        self._words = text.casefold().split()
        self._reset()

    def filter(self, state: HostState | None) -> None:
        """Shows only the hosts in a state, or all hosts."""
        self._state = state
        self._reset()

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def index_of(self, name: str) -> QModelIndex:
        """Returns the index of a host. It is invalid if the host is not shown."""
        return self.index(self._row_of[name]) if name in self._row_of else QModelIndex()

    def status_at(self, index: Index) -> HostStatus | None:
        return self._fleet.status(self._names[index.row()]) if 0 <= index.row() < len(self._names) else None

    def rowCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() else len(self._names)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        status = self.status_at(index)
        if status is None:
            return None
        if role == STATUS:
            return status
        if role == Qt.ItemDataRole.DisplayRole:
            return status.name
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return accessible_text(status)
        if role == Qt.ItemDataRole.ToolTipRole:
            return _tip(status)
        return None

    def _reset(self) -> None:
        before = self._names
        after = self._matching()
        if after == before:
            if before:
                self.dataChanged.emit(self.index(0), self.index(len(before) - 1))
            return
        self.beginResetModel()
        self._take(after)
        self.endResetModel()

    def _take(self, names: list[str]) -> None:
        self._names = names
        self._row_of = {name: row for row, name in enumerate(names)}

    def _matching(self) -> list[str]:
        return [status.name for status in self._fleet.hosts if self._matches(status)]

    def _matches(self, status: HostStatus) -> bool:
        if self._state is not None and status.condition is not self._state:
            return False
        labels = " ".join(f"{key}={value}" for key, value in status.host.labels.items())
        gpus = " ".join(gpu.name for gpu in status.gpus)
        searched = f"{status.name} {place(status)} {labels} {state_word(status)} {gpus}".casefold()
        return all(word in searched for word in self._words)

    def _changed(self, name: str) -> None:
        index = self.index_of(name)
        status = self._fleet.status(name)
        if status is not None and self._matches(status) != index.isValid():
            self._reset()
        elif index.isValid():
            self.dataChanged.emit(index, index)

    def _used(self, name: str) -> None:
        """Reports that a host's use has changed, which does not affect the height of its card."""
        index = self.index_of(name)
        if index.isValid():
            self.dataChanged.emit(index, index, [USE])


def _tip(status: HostStatus) -> str:
    when = full_time(status.since) if status.since is not None else ""
    return "\n".join(line for line in (place(status), when, sentence(status)) if line)
