"""The table of a run's replicas: sortable, with a sparkline each, and the columns that there is room for."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QModelIndex, Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from torchyard_gui.runs.replica_painting import ReplicaDelegate
from torchyard_gui.runs.replica_table_model import ReplicaOrder, ReplicaTableModel
from torchyard_gui.runs.table_columns import HOST, PAST, STATE, fitting_columns
from torchyard_gui.theme.theme import theme

SORT_EVERY_MS = 3000
"""Rows that changed places every second could not be read."""


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
