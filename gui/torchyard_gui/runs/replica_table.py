"""The table of a run's replicas: sortable, with a sparkline each, drawn for the rows that are seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QRectF,
    QSortFilterProxyModel,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import QHideEvent, QPainter, QPolygonF, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_parts import Changes, Track, short_cause
from torchyard_gui.bridge.step_parts import name_of, sentence_of, written
from torchyard_gui.runs.table_columns import (
    COMPUTE,
    DROPPED,
    EXCHANGE,
    GPUS,
    HOST,
    LOSS,
    MEMORY,
    NAME,
    PAST,
    RATE,
    SKIPPED,
    STALE,
    STATE,
    STEP,
    USE,
    WAIT,
    fitting_columns,
)  # fmt: skip
from torchyard_gui.runs.words import clock, loss, mark_of, memory, percent, rate, restarts, state_word
from torchyard_gui.theme.icons import paint_role_badge, paint_state
from torchyard_gui.theme.theme import theme

Index = QModelIndex | QPersistentModelIndex
TRACK = Qt.ItemDataRole.UserRole
SORT = Qt.ItemDataRole.UserRole + 1
STEP_PARTS = {
    COMPUTE: "compute_s",
    EXCHANGE: "exchange_s",
    WAIT: "wait_s",
    STALE: "staleness",
    DROPPED: "dropped",
    SKIPPED: "skipped",
}
"""What a step was made of, by the reports' names."""
FIELDS = {STEP: "step", LOSS: "loss", RATE: "throughput", **STEP_PARTS}
SPARK_POINTS = 90
SORT_EVERY_MS = 3000
"""Rows that changed places every second could not be read."""


class ReplicaTableModel(QAbstractTableModel):
    """A row a replica, in the plan's order."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self.feed: RunFeed | None = None
        self._tracks: list[Track] = []
        self._rows: dict[str, int] = {}

    def set_feed(self, feed: RunFeed | None) -> None:
        """Another run, or one that has more replicas now."""
        self.beginResetModel()
        self.feed = feed
        self._tracks = list(feed.picture.tracks.values()) if feed else []
        self._rows = {track.name: row for row, track in enumerate(self._tracks)}
        self.endResetModel()

    def take(self, changes: Changes) -> None:
        """What changed is drawn anew where it is seen."""
        if self.feed is None:
            return
        if len(self.feed.picture.tracks) != len(self._tracks):
            self.set_feed(self.feed)
        elif changes.replicas or changes.run:
            # One signal for all: the view draws visible rows only, and sorts once.
            rows = [self._rows[name] for name in changes.replicas if name in self._rows] or [0]
            if self._tracks:
                self.dataChanged.emit(self.index(min(rows), 0), self.index(max(rows), PAST))

    def name_at(self, row: int) -> str:
        return self._tracks[row].name

    def told(self) -> set[int]:
        """Columns of what a step was made of in which a replica has a value."""
        return {
            column
            for column, field in STEP_PARTS.items()
            if any(track.ring.last(field) is not None for track in self._tracks)
        }

    def row_of(self, name: str) -> int:
        return self._rows.get(name, -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._tracks)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
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
                HOST: self.tr("Host"),
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
            return self.tr("Of its GPUs; of one CPU where it has none")
        if role == Qt.ItemDataRole.ToolTipRole and section in STEP_PARTS:
            return sentence_of(STEP_PARTS[section])
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        track = self._tracks[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self._text(track, index.column())
        if role == SORT:
            return self._value(track, index.column())
        if role == TRACK:
            return track
        if role == Qt.ItemDataRole.ToolTipRole and index.column() == STATE and self.feed is not None:
            told = [self.state_of(track)[1], restarts(track.restarts), self.feed.picture.cause_of(track)]
            return "\n".join(line for line in dict.fromkeys(told) if line)
        if role == Qt.ItemDataRole.AccessibleTextRole and index.column() == PAST:
            return percent(_use(track))
        return None

    def state_of(self, track: Track) -> tuple[str, str]:
        """(the mark's name, the words)."""
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
            return "warning", self.tr("slow, {factor}× median").format(factor=f"{slow:.1f}")
        again = restarts(track.restarts)
        word = state_word(track.state)
        return mark_of(track.state), self.tr("{state}, {restarts}").format(
            state=word, restarts=again
        ) if again else word

    def _text(self, track: Track, column: int) -> str:
        ring = track.ring
        if column == NAME:
            return track.name
        if column == STATE:
            return self.state_of(track)[1]
        if column == HOST:
            return track.host
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

    def _value(self, track: Track, column: int) -> Any:
        if column == NAME:
            return f"{track.role} {track.index:06d}"
        if column == STATE:
            return self.state_of(track)[1]
        if column == HOST:
            return track.host
        if column == GPUS:
            return float(len(track.gpus))
        if column in FIELDS:
            value = track.ring.last(FIELDS[column])
        else:
            value = _memory(track) if column == MEMORY else _use(track)
        return -math.inf if value is None else value


class ReplicaOrder(QSortFilterProxyModel):
    """Sorts by values, not by their texts, and finds by name, host and state."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self.setSortRole(SORT)
        self.setDynamicSortFilter(False)
        self._text = ""

    def set_filter(self, text: str) -> None:
        self.beginFilterChange()
        self._text = text.strip().lower()
        self.endFilterChange()

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        model = self.sourceModel()
        if not self._text or not isinstance(model, ReplicaTableModel):
            return True
        track = model.index(row, 0).data(TRACK)
        return self._text in f"{track.name} {track.host} {track.state} {track.reason}".lower()


class ReplicaDelegate(QStyledItemDelegate):
    """Draws a row: badge and name, mark and state, numbers at the right, and the past as a line."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        look = theme()
        rect: QRect = option.rect  # type: ignore[attr-defined]
        state: QStyle.StateFlag = option.state  # type: ignore[attr-defined]
        track: Track = index.data(TRACK)
        column = index.column()
        painter.save()
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, look.color("accent_soft"))
        inner = rect.adjusted(8, 0, -8, 0)
        painter.setFont(look.font("strong" if column == NAME else "body"))
        painter.setPen(look.pen("text" if column == NAME or STEP <= column <= MEMORY else "text2"))
        if column == PAST:
            self._past(painter, inner, track)
        elif column == NAME:
            paint_role_badge(painter, QRectF(inner.x(), inner.center().y() - 7, 16, 16), track.role)
            _text(painter, inner.adjusted(24, 0, 0, 0), str(index.data()), Qt.AlignmentFlag.AlignLeft)
        elif column == STATE:
            model = index.model()
            source = model.sourceModel() if isinstance(model, QSortFilterProxyModel) else model
            mark = source.state_of(track)[0] if isinstance(source, ReplicaTableModel) else track.state
            paint_state(painter, QRectF(inner.x(), inner.center().y() - 6, 14, 14), mark)
            painter.setPen(look.pen({"failed": "fail", "warning": "wait"}.get(mark, "text2")))
            _text(painter, inner.adjusted(20, 0, 0, 0), str(index.data()), Qt.AlignmentFlag.AlignLeft)
        else:
            side = Qt.AlignmentFlag.AlignRight if GPUS <= column <= MEMORY else Qt.AlignmentFlag.AlignLeft
            _text(painter, inner, str(index.data()), side)
        painter.restore()

    def _past(self, painter: QPainter, rect: QRect, track: Track) -> None:
        values = track.ring.tail("gpu" if track.gpus else "cpu", SPARK_POINTS)
        if len(values) < 2:
            return
        top = 100.0 if track.gpus else max(100.0, float(np.nanmax(values)) if np.isfinite(values).any() else 100.0)
        width, height = rect.width(), rect.height() - 10
        xs = rect.x() + np.arange(len(values)) * (width / (SPARK_POINTS - 1)) + width * (1 - len(values) / SPARK_POINTS)
        ys = rect.y() + 5 + height * (1 - np.clip(values / top, 0, 1))
        painter.setPen(theme().pen("meter"))
        for piece in _pieces(xs, ys):
            painter.drawPolyline(piece)


class ReplicaTable(QTableView):
    """The table with its order; `chosen_changed` carries the names of the selected rows."""

    chosen_changed = Signal(list)
    opened = Signal(str)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.replicas = ReplicaTableModel(self)
        self.order = ReplicaOrder(self)
        self.order.setSourceModel(self.replicas)
        self.setModel(self.order)
        self.setItemDelegate(ReplicaDelegate(self))
        self.setSortingEnabled(True)
        self.sortByColumn(-1, Qt.SortOrder.AscendingOrder)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setTabKeyNavigation(False)  # Tab goes on to what is beside it; arrows move in the table
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setAccessibleName(self.tr("Replicas"))
        self.verticalHeader().setVisible(False)
        self.verticalHeader().setDefaultSectionSize(theme().metrics.row)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        self._shown: dict[int, int] = {}
        self._fit_columns()
        self.selectionModel().selectionChanged.connect(self._chosen)
        self.activated.connect(self._opened)
        self._sort_timer = QTimer(self)
        self._sort_timer.setSingleShot(True)
        self._sort_timer.setInterval(SORT_EVERY_MS)
        self._sort_timer.timeout.connect(self._sort_again)
        self.replicas.dataChanged.connect(self._data_changed)
        self.replicas.modelReset.connect(self._fit_columns)
        theme().changed.connect(self.viewport().update)
        self._choosing = False

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()

    def _fit_columns(self) -> None:
        """The columns that there is something to say in and room for; their widths are as somebody drew them."""
        fitting = fitting_columns(self.viewport().width(), self.replicas.told())
        if fitting == self._shown:
            return
        self._shown = fitting
        for column in range(PAST + 1):
            self.setColumnHidden(column, column not in fitting)
            if column in fitting:
                self.setColumnWidth(column, fitting[column])

    def choose(self, names: Iterable[str]) -> None:
        """Selects these rows, without telling."""
        self._choosing = True
        selection = self.selectionModel()
        selection.clearSelection()
        for name in names:
            row = self.replicas.row_of(name)
            if row >= 0:
                index = self.order.mapFromSource(self.replicas.index(row, 0))
                selection.select(index, selection.SelectionFlag.Select | selection.SelectionFlag.Rows)
        self._choosing = False

    def chosen(self) -> list[str]:
        rows = (self.order.mapToSource(index).row() for index in self.selectionModel().selectedRows())
        return [self.replicas.name_at(row) for row in sorted(rows)]

    def _chosen(self) -> None:
        if not self._choosing:
            self.chosen_changed.emit(self.chosen())

    def _opened(self, index: QModelIndex) -> None:
        self.opened.emit(self.replicas.name_at(self.order.mapToSource(index).row()))

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._sort_timer.stop()

    def _data_changed(self) -> None:
        self._fit_columns()
        column = self.order.sortColumn()
        if column >= STATE and column != HOST and self.isVisible() and not self._sort_timer.isActive():
            self._sort_timer.start()

    def _sort_again(self) -> None:
        if self.order.sortColumn() >= 0:
            self.order.sort(self.order.sortColumn(), self.order.sortOrder())


def _use(track: Track) -> float | None:
    return track.ring.last("gpu" if track.gpus else "cpu")


def _memory(track: Track) -> float | None:
    return track.ring.last("gpu_memory_mb" if track.gpus else "memory_mb")


def _text(painter: QPainter, rect: QRect, text: str, side: Qt.AlignmentFlag) -> None:
    short = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, rect.width())
    painter.drawText(rect, side | Qt.AlignmentFlag.AlignVCenter, short)


def _pieces(xs: Any, ys: Any) -> list[QPolygonF]:
    """Lines between gaps."""
    pieces: list[QPolygonF] = []
    points: list[QPointF] = []
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isnan(y):
            if len(points) > 1:
                pieces.append(QPolygonF(points))
            points = []
        else:
            points.append(QPointF(x, y))
    if len(points) > 1:
        pieces.append(QPolygonF(points))
    return pieces
