"""List model of the hosts and clusters that match the search and the chosen state."""

from __future__ import annotations

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import HostStatus
from torchyard_gui.fleet.cluster_labels import cluster_tip, spoken_cluster
from torchyard_gui.fleet.labels import accessible_text, full_time, place, sentence, state_word

Index = QModelIndex | QPersistentModelIndex
Entry = HostStatus | ClusterStatus
STATUS = int(Qt.ItemDataRole.UserRole)
USE = STATUS + 1
"""The role that `dataChanged` reports if only the use of a host has changed.

While a page shows the hosts, their use changes every second.
"""


class HostListModel(QAbstractListModel):
    """List model with a row for each matching host, followed by a row for each matching cluster, in the order of the
    fleet file.
    """

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
        fleet.clusters.changed.connect(self._changed)

    def search(self, text: str) -> None:
        """Limits the rows to matching entries. The name, address, labels, partition, state and GPUs of an entry must
        contain every word of the search.
        """
        self._words = text.casefold().split()
        self._reset()

    def filter(self, state: HostState | None) -> None:
        """Limits the rows to the hosts and clusters in a state. None shows those in any state."""
        self._state = state
        self._reset()

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def index_of(self, name: str) -> QModelIndex:
        """Returns the index of a host or cluster. The index is invalid if the entry is not shown."""
        return self.index(self._row_of[name]) if name in self._row_of else QModelIndex()

    def status_at(self, index: Index) -> Entry | None:
        return self._status(self._names[index.row()]) if 0 <= index.row() < len(self._names) else None

    def _status(self, name: str) -> Entry | None:
        return self._fleet.status(name) or self._fleet.clusters.status(name)

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
            return spoken_cluster(status) if isinstance(status, ClusterStatus) else accessible_text(status)
        if role == Qt.ItemDataRole.ToolTipRole:
            return cluster_tip(status) if isinstance(status, ClusterStatus) else _tip(status)
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
        entries: tuple[Entry, ...] = (*self._fleet.hosts, *self._fleet.clusters.all)
        return [status.name for status in entries if self._matches(status)]

    def _matches(self, status: Entry) -> bool:
        if self._state is not None and status.condition is not self._state:
            return False
        if isinstance(status, ClusterStatus):
            searched = f"{cluster_tip(status)} {status.name} {state_word(status)}".casefold()
            return all(word in searched for word in self._words)
        labels = " ".join(f"{key}={value}" for key, value in status.host.labels.items())
        gpus = " ".join(gpu.name for gpu in status.gpus)
        searched = f"{status.name} {place(status)} {labels} {state_word(status)} {gpus}".casefold()
        return all(word in searched for word in self._words)

    def _changed(self, name: str) -> None:
        index = self.index_of(name)
        status = self._status(name)
        if status is not None and self._matches(status) != index.isValid():
            self._reset()
        elif index.isValid():
            self.dataChanged.emit(index, index)

    def _used(self, name: str) -> None:
        """Emits `dataChanged` with the role `USE`: the use of a host has changed, but not the height of its card."""
        index = self.index_of(name)
        if index.isValid():
            self.dataChanged.emit(index, index, [USE])


def _tip(status: HostStatus) -> str:
    when = full_time(status.since) if status.since is not None else ""
    return "\n".join(line for line in (place(status), when, sentence(status)) if line)
