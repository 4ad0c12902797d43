"""Table model of the replicas of a run, and their sort order."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, QSortFilterProxyModel, Qt

from torchyard_gui.bridge.metric_labels import name_of, sentence_of, written
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state_types import ReplicaStatus, RunChanges, short_cause
from torchyard_gui.runs.labels import clock, loss, mark_of, memory, percent, rate, restarts, state_word
from torchyard_gui.runs.replica_groups import Grouping, ReplicaGroup, groups_of

(
    NAME, STATE, HOST, GPUS, STEP, LOSS, RATE, COMPUTE, EXCHANGE, WAIT, STALE, DROPPED, SKIPPED, VERSION, CLIENTS,
    TRAFFIC, USE, MEMORY, PAST,
) = range(19)  # fmt: skip

WIDTHS = {
    NAME: 114, STATE: 174, HOST: 70, GPUS: 50, STEP: 62, LOSS: 66, RATE: 84, COMPUTE: 78, EXCHANGE: 80, WAIT: 74,
    STALE: 82, DROPPED: 76, SKIPPED: 74, VERSION: 72, CLIENTS: 74, TRAFFIC: 86, USE: 56, MEMORY: 74, PAST: 60,
}  # fmt: skip
NARROW = {NAME: 120, STATE: 132, HOST: 66, STEP: 56, LOSS: 62, RATE: 80}
"""Widths of columns that are narrower if not all columns fit. Text that does not fit is elided."""
WHERE_REPORTED = (COMPUTE, EXCHANGE, WAIT, STALE, DROPPED, SKIPPED, VERSION, CLIENTS, TRAFFIC)
GIVE_WAY = (GPUS, MEMORY, SKIPPED, CLIENTS, VERSION, PAST, USE, COMPUTE, DROPPED, TRAFFIC, HOST, LOSS)
"""Columns in the order in which they are hidden until the remaining columns fit."""


def fitting_columns(room: int, reported: Collection[int]) -> dict[int, int]:
    """Returns the columns that fit, with their widths.

    Args:
        room: Available width in pixels.
        reported: Columns of WHERE_REPORTED for which a replica has reported a value.
    """
    shown = {column: width for column, width in WIDTHS.items() if column not in WHERE_REPORTED or column in reported}
    if sum(shown.values()) <= room:
        return shown
    shown = {column: NARROW.get(column, width) for column, width in shown.items()}
    for column in GIVE_WAY:
        if sum(shown.values()) <= room:
            break
        shown.pop(column, None)
    return shown


Index = QModelIndex | QPersistentModelIndex
TRACK = Qt.ItemDataRole.UserRole
SORT = Qt.ItemDataRole.UserRole + 1
GROUP = Qt.ItemDataRole.UserRole + 2
"""Item data role of the ReplicaGroup in a heading row. The row of a replica has a ReplicaStatus in the role TRACK
instead.
"""
STEP_PARTS = {
    COMPUTE: "compute_s",
    EXCHANGE: "exchange_s",
    WAIT: "wait_s",
    STALE: "staleness",
    DROPPED: "dropped",
    SKIPPED: "skipped",
    VERSION: "version",
    CLIENTS: "clients",
    TRAFFIC: "bytes_s",
}
"""Names of step parts and server metrics in reports, by column."""
FIELDS = {STEP: "step", LOSS: "loss", RATE: "throughput", **STEP_PARTS}


class ReplicaTableModel(QAbstractTableModel):
    """A model with one row for each replica of the run, followed by one row for the heading of each group."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self.feed: RunFeed | None = None
        self._tracks: list[ReplicaStatus] = []
        self._rows: dict[str, int] = {}
        self.grouping: Grouping = ""
        self.folded: set[str] = set()
        """Names of the groups whose replicas are hidden."""
        self._groups: list[ReplicaGroup] = []
        """The groups. In this model, the rows of their headings follow the rows of all replicas; the proxy model sorts
        each heading before the replicas of its group.
        """
        self._group_of: dict[str, int] = {}

    def set_feed(self, feed: RunFeed | None) -> None:
        """Shows the replicas of a run. Must be called again when more replicas of the run become known."""
        self.beginResetModel()
        self.feed = feed
        self._tracks = list(feed.picture.tracks.values()) if feed else []
        self._rows = {track.name: row for row, track in enumerate(self._tracks)}
        self._groups = groups_of(feed.picture, self.grouping) if feed else []
        self._group_of = {track.name: place for place, group in enumerate(self._groups) for track in group.tracks}
        self.endResetModel()

    def set_grouping(self, grouping: Grouping) -> None:
        """Adds a heading for each pool or host; "" removes the headings."""
        self.grouping = grouping
        self.folded.clear()
        self.set_feed(self.feed)

    def place_of(self, row: int) -> tuple[int, bool]:
        """Returns the position of a row's group (0 if there are no groups), and whether the row is the heading of the
        group.
        """
        if row >= len(self._tracks):
            return row - len(self._tracks), True
        return self._group_of.get(self._tracks[row].name, 0), False

    def take(self, changes: RunChanges) -> None:
        if self.feed is None:
            return
        if len(self.feed.picture.tracks) != len(self._tracks):
            self.set_feed(self.feed)
        elif changes.replicas or changes.run:
            # A single signal covers all changed rows, so that the view sorts only once. The view repaints only visible
            # rows anyway.
            rows = [self._rows[name] for name in changes.replicas if name in self._rows] or [0]
            if self._tracks:
                last = self.rowCount() - 1 if self._groups else max(rows)
                self.dataChanged.emit(self.index(min(rows), 0), self.index(last, PAST))

    def names_at(self, row: int) -> list[str]:
        """Returns the replica of a row or, for a heading, all replicas of its group."""
        if row >= len(self._tracks):
            return [track.name for track in self._groups[row - len(self._tracks)].tracks]
        return [self._tracks[row].name]

    def is_folded(self, place: int) -> bool:
        """Whether the replicas of the group at a position are hidden."""
        return bool(self._groups) and self._groups[place].name in self.folded

    def reported(self) -> set[int]:
        """Returns the columns of STEP_PARTS for which at least one replica has reported a value."""
        return {
            column
            for column, field in STEP_PARTS.items()
            if any(track.ring.last(field) is not None for track in self._tracks)
        }

    def row_of(self, name: str) -> int:
        return self._rows.get(name, -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() else len(self._tracks) + len(self._groups)

    def columnCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() else PAST + 1

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if GPUS <= section <= MEMORY else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.DisplayRole:
            return {
                NAME: self.tr("Replica"),
                STATE: self.tr("State"),
                HOST: self.tr("Node") if self._has_nodes else self.tr("Host"),
                GPUS: self.tr("GPUs"),
                STEP: self.tr("Step"),
                LOSS: self.tr("Loss"),
                RATE: self.tr("Samples/s"),
                **{column: name_of(field) for column, field in STEP_PARTS.items()},
                USE: self.tr("Use"),
                MEMORY: self.tr("Memory"),
                PAST: self.tr("Recent use"),
            }[section]
        if role == Qt.ItemDataRole.ToolTipRole and section in (USE, PAST):
            return self.tr("Of its GPUs; of one CPU if it has none")
        if role == Qt.ItemDataRole.ToolTipRole and section == RATE:
            return self.tr("Throughput of the replica: samples per second, mean of the last 10 s")
        if role == Qt.ItemDataRole.ToolTipRole and section in STEP_PARTS:
            return sentence_of(STEP_PARTS[section])
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if index.row() >= len(self._tracks):
            return self._heading(self._groups[index.row() - len(self._tracks)], index.column(), role)
        track = self._tracks[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self._text(track, index.column())
        if role == SORT:
            return self._value(track, index.column())
        if role == TRACK:
            return track
        if role == Qt.ItemDataRole.ToolTipRole and index.column() == STATE and self.feed is not None:
            reported = [self.state_of(track)[1], restarts(track.restarts), self.feed.picture.cause_of(track)]
            return "\n".join(line for line in dict.fromkeys(reported) if line)
        if role == Qt.ItemDataRole.ToolTipRole and index.column() == HOST:
            return self._place_tip(track)
        if role == Qt.ItemDataRole.AccessibleTextRole and index.column() == PAST:
            return percent(_use(track))
        return None

    @property
    def _has_nodes(self) -> bool:
        """Whether the run is on cluster nodes that Slurm has chosen."""
        return self.feed is not None and any(self.feed.picture.node_of(track.host) for track in self._tracks)

    def host_text(self, track: ReplicaStatus) -> str:
        """Returns the name of the replica's host or, on a cluster, of the node that Slurm has chosen for it."""
        return track.host if self.feed is None else self.feed.picture.place_of(track.host)

    def searched_text(self, track: ReplicaStatus) -> str:
        """Returns the text in which the filter searches, in lower case."""
        return f"{track.name} {track.host} {self.host_text(track)} {track.state} {track.reason}".lower()

    def _place_tip(self, track: ReplicaStatus) -> str:
        place = self.host_text(track)
        if place == track.host:
            return place
        return self.tr("{node}, which is {host} of this run").format(node=place, host=track.host)

    def _heading(self, group: ReplicaGroup, column: int, role: int) -> Any:
        if role == GROUP:
            return group
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            if column == STATE:
                return group.state_summary(self.state_of)[1]
            texts = {NAME: group.title, GPUS: group.gpus, RATE: group.throughput, USE: group.use, MEMORY: group.memory}
            return texts.get(column, "")
        if role == Qt.ItemDataRole.AccessibleTextRole and column == NAME:
            state = self.tr("folded") if group.name in self.folded else self.tr("unfolded")
            return f"{group.title}, {group.state_summary(self.state_of)[1]}, {state}"
        return None

    def state_of(self, track: ReplicaStatus) -> tuple[str, str]:
        """Returns the name of the mark of a replica's state, and the state as text."""
        if self.feed is None:
            return "unknown", ""
        since = self.feed.picture.stale_since(track)
        if since is not None:
            return "unknown", self.tr("unknown since {time}").format(time=clock(since))
        if track.state == "failed":
            cause = short_cause(self.feed.picture.cause_of(track), track.exit_code)
            return "failed", self.tr("failed: {cause}").format(cause=cause) if cause else state_word("failed")
        slow = self.feed.picture.slow.get(track.name)
        if slow is not None:
            return "warning", self.tr("slow, {factor}×").format(factor=f"{slow:.1f}")
        again = restarts(track.restarts)
        word = state_word(track.state)
        return mark_of(track.state), self.tr("{state}, {restarts}").format(
            state=word, restarts=again
        ) if again else word

    def _text(self, track: ReplicaStatus, column: int) -> str:
        ring = track.ring
        if column == NAME:
            return track.name
        if column == STATE:
            return self.state_of(track)[1]
        if column == HOST:
            return self.host_text(track)
        if column == GPUS:
            return str(len(track.gpus)) if track.gpus else "–"
        if column == STEP:
            step = ring.last("step")
            return "–" if step is None else f"{step:,.0f}"
        if column == LOSS:
            return loss(ring.last("loss"))
        if column == RATE:
            return rate(ring.last("throughput"))
        if column in STEP_PARTS:
            return written(STEP_PARTS[column], ring.last(STEP_PARTS[column]))
        if column == USE:
            return "–" if track.is_over else percent(_use(track))
        if column == MEMORY:
            return "–" if track.is_over else memory(_memory(track))
        return ""

    def _value(self, track: ReplicaStatus, column: int) -> Any:
        if column == NAME:
            return f"{track.role} {track.index:06d}"
        if column == STATE:
            return self.state_of(track)[1]
        if column == HOST:
            return self.host_text(track)
        if column == GPUS:
            return float(len(track.gpus))
        if column in FIELDS:
            value = track.ring.last(FIELDS[column])
        else:
            value = _memory(track) if column == MEMORY else _use(track)
        return -math.inf if value is None else value


class ReplicaOrder(QSortFilterProxyModel):
    """Proxy model that sorts by value, filters by name, host, node, state and reason, and hides folded groups."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self.setSortRole(SORT)
        self.setDynamicSortFilter(False)
        self._text = ""

    def set_filter(self, text: str) -> None:
        self.beginFilterChange()
        self._text = text.strip().lower()
        self.endFilterChange()
        self._sort_again()

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        model = self.sourceModel()
        if not isinstance(model, ReplicaTableModel):
            return True
        place, is_heading = model.place_of(row)
        if not self._text:
            return is_heading or not model.is_folded(place)
        group: ReplicaGroup | None = model.index(row, 0).data(GROUP)
        tracks = group.tracks if group is not None else (model.index(row, 0).data(TRACK),)
        return any(self._text in model.searched_text(track) for track in tracks)

    def lessThan(self, left: Index, right: Index) -> bool:
        """Keeps groups in their order and headings above their replicas, in both sort directions."""
        model = self.sourceModel()
        if isinstance(model, ReplicaTableModel) and model.grouping:
            first, second = model.place_of(left.row()), model.place_of(right.row())
            if first[0] != second[0]:
                return (first[0] < second[0]) == (self.sortOrder() == Qt.SortOrder.AscendingOrder)
            if first[1] != second[1]:
                return first[1] == (self.sortOrder() == Qt.SortOrder.AscendingOrder)
        return super().lessThan(left, right)

    def fold(self, name: str) -> None:
        """Hides or shows the replicas of a group."""
        model = self.sourceModel()
        assert isinstance(model, ReplicaTableModel)
        self.beginFilterChange()
        model.folded ^= {name}
        self.endFilterChange()
        self._sort_again()

    def _sort_again(self) -> None:
        """Sorts the rows again, because without dynamic sorting, Qt appends rows that the filter shows again."""
        if self.sortColumn() >= 0:
            self.sort(self.sortColumn(), self.sortOrder())


def _use(track: ReplicaStatus) -> float | None:
    return track.ring.last("gpu" if track.gpus else "cpu")


def _memory(track: ReplicaStatus) -> float | None:
    return track.ring.last("gpu_memory_mb" if track.gpus else "memory_mb")
