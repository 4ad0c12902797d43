"""The table of a run's replicas. It can be sorted, contains sparklines, and shows as many columns as fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
from PySide6.QtCore import QModelIndex, QRect, QRectF, QSortFilterProxyModel, Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from torchyard_gui.bridge.run_state_types import ReplicaStatus
from torchyard_gui.runs.plots.mini_plot import lines_between_gaps
from torchyard_gui.runs.replica_columns import (
    GPUS,
    GROUP,
    HOST,
    MEMORY,
    NAME,
    PAST,
    STATE,
    STEP,
    TRACK,
    Index,
    ReplicaOrder,
    ReplicaTableModel,
    fitting_columns,
)
from torchyard_gui.runs.replica_groups import Grouping, ReplicaGroup
from torchyard_gui.theme.icons import paint_role_badge, paint_state, pixmap
from torchyard_gui.theme.marks import trouble_token
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.containers import prepare_rows
from torchyard_gui.widgets.elided_text import LEFT, RIGHT, draw_elided

SORT_EVERY_MS = 3000
"""Time in milliseconds between a change of values and the next sort. With a shorter time, rows would move too often to
be read.
"""


class ReplicaTable(QTableView):
    """Table view. `chosen_changed` is emitted with the names of the selected replicas."""

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
        prepare_rows(self, self.tr("Replicas"), many=True)
        self.setWordWrap(False)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        self._shown: dict[int, int] = {}
        self._fit_columns()
        self.selectionModel().selectionChanged.connect(self._chosen)
        self.activated.connect(self._opened)
        self._sort_timer = QTimer(self, singleShot=True, interval=SORT_EVERY_MS)
        self._sort_timer.timeout.connect(self._sort_again)
        self.replicas.dataChanged.connect(self._data_changed)
        self.replicas.modelReset.connect(self._fit_columns)
        theme().changed.connect(self.viewport().update)
        self._choosing = False

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()

    def _fit_columns(self) -> None:
        """Shows as many columns as fit, leaving out columns without values. Column widths that the user has set are
        kept as long as the same columns are shown.
        """
        fitting = fitting_columns(self.viewport().width(), self.replicas.reported())
        if fitting == self._shown:
            return
        self._shown = fitting
        for column in range(PAST + 1):
            self.setColumnHidden(column, column not in fitting)
            if column in fitting:
                self.setColumnWidth(column, fitting[column])

    def choose(self, names: Iterable[str]) -> None:
        """Selects the rows of the named replicas without emitting `chosen_changed`."""
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
        names = dict.fromkeys(name for row in rows for name in self.replicas.names_at(row))
        return sorted(names, key=self.replicas.row_of)

    def set_grouping(self, grouping: str) -> None:
        """Groups the rows by `pool` or `host`, or removes the groups if `""` is given."""
        if grouping and self.order.sortColumn() < 0:
            self.sortByColumn(NAME, Qt.SortOrder.AscendingOrder)
        self.replicas.set_grouping(cast("Grouping", grouping))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        group = self.currentIndex().data(GROUP)
        folds = {Qt.Key.Key_Left: False, Qt.Key.Key_Right: True}
        if group is not None and event.key() in folds:
            if (group.name in self.replicas.folded) == folds[Qt.Key(event.key())]:
                self._fold(group)
            return
        super().keyPressEvent(event)

    def _fold(self, group: ReplicaGroup) -> None:
        self.order.fold(group.name)
        self.viewport().update()

    def _chosen(self) -> None:
        if not self._choosing:
            self.chosen_changed.emit(self.chosen())

    def _opened(self, index: QModelIndex) -> None:
        group = index.data(GROUP)
        if group is not None:
            self._fold(group)
            return
        self.opened.emit(self.replicas.names_at(self.order.mapToSource(index).row())[0])

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


SPARK_POINTS = 90


class ReplicaDelegate(QStyledItemDelegate):
    """Paints a row: badge and name, mark and state, numbers, and a sparkline."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        look = theme()
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        column = index.column()
        group: ReplicaGroup | None = index.data(GROUP)
        painter.save()
        if group is not None:
            self._heading(painter, option, index, group)
            painter.restore()
            return
        track: ReplicaStatus = index.data(TRACK)
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, look.color("accent_soft"))
        inner = rect.adjusted(8, 0, -8, 0)
        painter.setFont(look.font("strong" if column == NAME else "body"))
        painter.setPen(look.pen("text" if column == NAME or STEP <= column <= MEMORY else "text2"))
        if column == PAST:
            self._past(painter, inner, track)
        elif column == NAME:
            paint_role_badge(painter, QRectF(inner.x(), inner.center().y() - 7, 16, 16), track.role)
            draw_elided(painter, inner.adjusted(24, 0, 0, 0), str(index.data()))
        elif column == STATE:
            model = index.model()
            source = model.sourceModel() if isinstance(model, QSortFilterProxyModel) else model
            mark = source.state_of(track)[0] if isinstance(source, ReplicaTableModel) else track.state
            paint_state(painter, QRectF(inner.x(), inner.center().y() - 6, 14, 14), mark)
            ink = trouble_token(mark) or "text2"
            draw_elided(painter, inner.adjusted(20, 0, 0, 0), str(index.data()), ink=ink)
        else:
            side = RIGHT if GPUS <= column <= MEMORY else LEFT
            draw_elided(painter, inner, str(index.data()), side=side)
        painter.restore()

    def _heading(self, painter: QPainter, option: QStyleOptionViewItem, index: Index, group: ReplicaGroup) -> None:
        """Paints one column of a group's heading."""
        look = theme()
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        painter.fillRect(rect, look.color("accent_soft" if state & QStyle.StateFlag.State_Selected else "s1"))
        inner = rect.adjusted(8, 0, -8, 0)
        column = index.column()
        painter.setFont(look.font("strong" if column == NAME else "body"))
        painter.setPen(look.pen("text"))
        source = index.model().sourceModel()  # type: ignore[attr-defined]  # The model is always a proxy model.
        if column == NAME:
            chevron = "chevron-right" if group.name in source.folded else "chevron-down"
            size = painter.device().devicePixelRatioF()
            painter.drawPixmap(inner.x(), inner.center().y() - 7, pixmap(chevron, 16, "text2", size))
            draw_elided(painter, inner.adjusted(24, 0, 0, 0), group.title)
        elif column == STATE:
            mark, text = group.state_summary(source.state_of)
            paint_state(painter, QRectF(inner.x(), inner.center().y() - 6, 14, 14), mark)
            ink = {"failed": "fail", "warning": "wait"}.get(mark, "text2")
            draw_elided(painter, inner.adjusted(20, 0, 0, 0), text, ink=ink)
        else:
            draw_elided(painter, inner, str(index.data()), side=RIGHT if GPUS <= column <= MEMORY else LEFT)

    def _past(self, painter: QPainter, rect: QRect, track: ReplicaStatus) -> None:
        values = track.ring.tail("gpu" if track.gpus else "cpu", SPARK_POINTS)
        if len(values) < 2:
            return
        top = 100.0 if track.gpus else max(100.0, float(np.nanmax(values)) if np.isfinite(values).any() else 100.0)
        width, height = rect.width(), rect.height() - 10
        xs = rect.x() + np.arange(len(values)) * (width / (SPARK_POINTS - 1)) + width * (1 - len(values) / SPARK_POINTS)
        ys = rect.y() + 5 + height * (1 - np.clip(values / top, 0, 1))
        painter.setPen(theme().pen("meter"))
        for piece in lines_between_gaps(xs, ys):
            painter.drawPolyline(piece)
