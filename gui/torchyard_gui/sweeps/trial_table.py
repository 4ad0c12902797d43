"""The table of a sweep's trials, which can be sorted by every column."""

from __future__ import annotations

import math
import time
from typing import Any

from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    QSortFilterProxyModel,
    Qt,
    Signal,
)
from PySide6.QtGui import QFontMetricsF, QPainter, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QTableView, QWidget

from torchyard_agent.protocol.sweep_messages import parameter_text
from torchyard_core.sweeps.trial_table import STATES, SweepTable, Trial
from torchyard_gui.canvas.labels import duration
from torchyard_gui.sweeps.labels import amount, mark_of, parameter, seconds_of, state_word, value_of
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.marks import trouble_token
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.containers import prepare_rows
from torchyard_gui.widgets.elided_text import LEFT, RIGHT, draw_elided

Index = QModelIndex | QPersistentModelIndex
NUMBER, STATE, VALUE, PARAMETERS = range(4)
"""Columns. The columns of the parameters begin at PARAMETERS; the duration and the reason follow them."""
TRIAL, KEY = Qt.ItemDataRole.UserRole, Qt.ItemDataRole.UserRole + 1
"""Item data roles: the Trial of a row, and the value by which a column is sorted. The value None is sorted last."""
WIDTHS = {NUMBER: 60}
WIDEST_VALUE = -0.0001234
"""A value whose text, with four significant digits, is as long as possible."""
PARAMETER_WIDTH, DURATION_WIDTH, REASON_WIDTH = 80, 96, 76
"""Minimum widths in pixels of columns. A column is wider if its heading needs more space."""
LONGEST_NAME = 124
"""Maximum width in pixels of a parameter's column if the view is too narrow for the full headings of all columns."""
MARGIN, MARK_WIDTH = 8, 20


class TrialTableModel(QAbstractTableModel):
    """A table model with one row for each trial, in the order of their numbers."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self.table: SweepTable | None = None
        self._best = ""

    def set_table(self, table: SweepTable | None) -> None:
        """Sets the trials. Rows of new trials of the same sweep are inserted without a reset, to keep the selection."""
        before = self.table
        count = len(table.trials) if table is not None else 0
        if before is None or table is None or _shape(before) != _shape(table) or count < len(before.trials):
            self.beginResetModel()
            self._set(table)
            self.endResetModel()
            return
        known = len(before.trials)
        if count > known:
            self.beginInsertRows(QModelIndex(), known, count - 1)
        self._set(table)
        if count > known:
            self.endInsertRows()
        if known:
            self.dataChanged.emit(self.index(0, 0), self.index(known - 1, self.columnCount() - 1))

    def _set(self, table: SweepTable | None) -> None:
        self.table = table
        best = table.best if table is not None else None
        self._best = best.trial if best is not None else ""

    @property
    def duration_column(self) -> int:
        return PARAMETERS + (len(self.table.parameters) if self.table is not None else 0)

    def row_of(self, number: str) -> int:
        """Returns the row of a trial, or -1 if the model does not contain the trial."""
        trials = self.table.trials if self.table is not None else ()
        return next((row for row, trial in enumerate(trials) if trial.trial == number), -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() or self.table is None else len(self.table.trials)

    def columnCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() else self.duration_column + 2

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> str | int | None:
        if orientation == Qt.Orientation.Vertical:
            return None
        titles = [self.tr("Trial"), self.tr("State"), self.table.metric if self.table is not None else self.tr("Value")]
        titles += [*(self.table.parameters if self.table is not None else ()), self.tr("Duration"), self.tr("Reason")]
        if role == Qt.ItemDataRole.DisplayRole:
            return titles[section]
        if role == Qt.ItemDataRole.ToolTipRole:
            return self.tr("{column}: click to sort").format(column=titles[section])
        if role == Qt.ItemDataRole.TextAlignmentRole:
            is_number = section in (NUMBER, VALUE, self.duration_column) or self._is_numeric(section)
            # The sort indicator would cover part of a right-aligned header.
            return int((Qt.AlignmentFlag.AlignHCenter if is_number else LEFT) | Qt.AlignmentFlag.AlignVCenter)
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if self.table is None:
            return None
        trial = self.table.trials[index.row()]
        if role == TRIAL:
            return trial
        if role == KEY:
            return self._key(trial, index.column())
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return self._text(trial, index.column(), in_full=role == Qt.ItemDataRole.ToolTipRole)
        return None

    def _is_numeric(self, column: int) -> bool:
        """Returns whether a column contains the values of a parameter whose values are numbers."""
        if self.table is None or not PARAMETERS <= column < self.duration_column:
            return False
        name = self._parameter(column)
        return not any(isinstance(trial.params.get(name), (str, bool)) for trial in self.table.trials)

    def is_best(self, trial: Trial) -> bool:
        return trial.trial == self._best

    def _text(self, trial: Trial, column: int, *, in_full: bool) -> str:
        if column == NUMBER:
            if in_full and trial.run_id:
                return self.tr("Trial {number}, run {run}").format(number=trial.trial, run=trial.run_id)
            return trial.trial
        if column == STATE:
            word = state_word(trial.state)
            if in_full:
                where = self.tr("{state} on {hosts}") if trial.hosts else "{state}"
                text = where.format(state=word, hosts=" ".join(trial.hosts))
                return f"{text}: {trial.cause}" if trial.cause else text
            return self.tr("best") if self.is_best(trial) else word
        if column == VALUE:
            value = value_of(trial)
            return repr(value) if in_full and value is not None else amount(value)
        if column < self.duration_column:
            found = trial.params.get(self._parameter(column))
            return parameter_text(found) if in_full and found is not None else parameter(found)
        if column == self.duration_column:
            seconds = seconds_of(trial, time.time())
            return "–" if seconds is None else duration(seconds)
        return trial.cause

    def _key(self, trial: Trial, column: int) -> float | str | None:
        if column == NUMBER:
            return int(trial.trial)
        if column == STATE:
            return state_word(trial.state)
        if column == VALUE:
            return value_of(trial)
        if column < self.duration_column:
            found = trial.params.get(self._parameter(column))
            return parameter_text(found) if isinstance(found, bool) else found
        if column == self.duration_column:
            return seconds_of(trial, time.time())
        return trial.cause or None

    def _parameter(self, column: int) -> str:
        return self.table.parameters[column - PARAMETERS] if self.table is not None else ""


def _shape(table: SweepTable) -> tuple[object, ...]:
    return table.run_id, table.metric, table.parameters


class TrialOrder(QSortFilterProxyModel):
    """Proxy model that sorts the trials. Unknown values are last in both sort directions."""

    def lessThan(self, left: Index, right: Index) -> bool:
        one, other = left.data(KEY), right.data(KEY)
        if one is None or other is None:
            if self.sortOrder() == Qt.SortOrder.DescendingOrder:
                return one is None and other is not None
            return one is not None and other is None
        if isinstance(one, str) != isinstance(other, str):
            return str(one) < str(other)
        return bool(one < other)


class TrialDelegate(QStyledItemDelegate):
    """Paints a cell: the mark and name of a state, or a text. The row of the best trial is bold."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        look = theme()
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        trial: Trial = index.data(TRIAL)
        proxy = index.model()
        assert isinstance(proxy, TrialOrder)
        source = proxy.sourceModel()
        assert isinstance(source, TrialTableModel)
        column = index.column()
        painter.save()
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, look.color("accent_soft"))
        painter.setFont(look.font("strong" if source.is_best(trial) else "body"))
        inner = rect.adjusted(MARGIN, 0, -MARGIN, 0)
        text = str(index.data())
        ink = trouble_token(trial.state) or "text2"
        if column == STATE:
            paint_state(painter, QRectF(inner.x(), inner.center().y() - 6, 14, 14), mark_of(trial.state))
            draw_elided(painter, inner.adjusted(MARK_WIDTH, 0, 0, 0), text, ink=ink)
        elif column > source.duration_column:
            draw_elided(painter, inner, text, ink=ink)
        else:
            is_word = VALUE < column < source.duration_column and isinstance(index.data(KEY), str)
            draw_elided(painter, inner, text, ink="text", side=LEFT if is_word else RIGHT)
        painter.restore()


class TrialTable(QTableView):
    """Table view of a sweep's trials. `chosen` is emitted with the number of the trial that the user selects."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._needed, self._fits = 0, True
        """The width in pixels that all columns need for their full headings, and whether the view has this width."""
        self.trials = TrialTableModel(self)
        self.order = TrialOrder(self)
        self.order.setSourceModel(self.trials)
        self.setModel(self.order)
        self.setItemDelegate(TrialDelegate(self))
        self.setSortingEnabled(True)
        self.sortByColumn(NUMBER, Qt.SortOrder.DescendingOrder)
        prepare_rows(self, self.tr("Trials"))
        self.setWordWrap(False)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setTextElideMode(Qt.TextElideMode.ElideRight)
        header.setStretchLastSection(True)
        self.trials.modelReset.connect(self._size_columns)
        self.selectionModel().currentRowChanged.connect(self._current_changed)
        theme().changed.connect(self.viewport().update)
        self._size_columns()

    @property
    def trial(self) -> Trial | None:
        """The selected trial."""
        rows = self.selectionModel().selectedRows()
        found: Trial | None = rows[0].data(TRIAL) if rows else None
        return found

    def show_table(self, table: SweepTable | None) -> None:
        """Shows the trials of a sweep. The sort order and the selection are kept when trials are added."""
        self.trials.set_table(table)
        if self.order.sortColumn() >= 0:
            self.order.sort(self.order.sortColumn(), self.order.sortOrder())

    def choose(self, number: str) -> None:
        """Selects a trial and scrolls to it."""
        row = self.trials.row_of(number)
        if row >= 0:
            index = self.order.mapFromSource(self.trials.index(row, 0))
            self.setCurrentIndex(index)
            self.scrollTo(index)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Adapts the widths of columns to the view's width, and keeps the selected trial visible."""
        super().resizeEvent(event)
        if self._fits != (self._needed <= self.viewport().width()):
            self._size_columns()
        if self.trial is not None:
            self.scrollTo(self.currentIndex())

    def _current_changed(self, current: QModelIndex, before: QModelIndex) -> None:
        self.chosen.emit(current.data(TRIAL).trial if current.isValid() else "")

    def _size_columns(self) -> None:
        last = self.trials.columnCount() - 1
        metrics, strong = QFontMetricsF(theme().font("body")), QFontMetricsF(theme().font("strong"))
        words = max(metrics.horizontalAdvance(state_word(state)) for state in STATES)
        widths = {
            **WIDTHS,
            VALUE: math.ceil(strong.horizontalAdvance(amount(WIDEST_VALUE))) + 2 * MARGIN,
            STATE: math.ceil(words) + MARK_WIDTH + 2 * MARGIN,
            self.trials.duration_column: DURATION_WIDTH,
            last: REASON_WIDTH,
        }
        header = self.horizontalHeader()
        for column in range(last + 1):
            widths[column] = max(widths.get(column, PARAMETER_WIDTH), header.sectionSizeHint(column))
        self._needed = sum(widths.values())
        self._fits = self._needed <= self.viewport().width()
        for column, width in widths.items():
            is_parameter = PARAMETERS <= column < self.trials.duration_column
            self.setColumnWidth(column, min(width, LONGEST_NAME) if is_parameter and not self._fits else width)
