"""The list of runs or sweeps in the left panel of a page: its model, the background of its rows, and its view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QCoreApplication,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    Qt,
)
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from torchyard_core.formatting import clock
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.run_state_types import when
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.theme import theme

Index = QModelIndex | QPersistentModelIndex
RUN = Qt.ItemDataRole.UserRole
"""The item data role of a row's KnownRun. A heading has no value in this role."""


def state_as_of(run: KnownRun, word: str) -> str:
    """Returns the name of a run's state, with the time of the last contact if the state may be outdated."""
    if not run.is_stale:
        return word
    at = when(run.as_of)
    text = QCoreApplication.translate("Runs", "{state} as of {time}")
    return text.format(state=word, time="–" if at is None else clock(at))


class RunRows(QAbstractListModel):
    """A list model with one row for each run and each heading. A heading is a string."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self._rows: list[KnownRun | str] = []

    def set_rows(self, rows: Sequence[KnownRun | str]) -> None:
        """Sets the rows. If the runs are the same as before, the selection and the scroll position are kept."""
        are_same = list(map(_key, rows)) == list(map(_key, self._rows))
        if not are_same:
            self.beginResetModel()
        self._rows = list(rows)
        if not are_same:
            self.endResetModel()
        elif rows:
            self.dataChanged.emit(self.index(0), self.index(len(rows) - 1))

    def row_of(self, run_id: str) -> int:
        """Returns the row of a run, or -1 if the list does not contain the run."""
        rows = (row for row, run in enumerate(self._rows) if isinstance(run, KnownRun) and run.run_id == run_id)
        return next(rows, -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self._rows[index.row()]
        if role == RUN:
            return row if isinstance(row, KnownRun) else None
        if isinstance(row, str):
            return row if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole) else None
        if role == Qt.ItemDataRole.DisplayRole:
            return row.name or row.run_id
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return ", ".join(filter(None, self.spoken(row)))
        if role == Qt.ItemDataRole.ToolTipRole:
            return "\n".join(filter(None, self.tip(row)))
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        if isinstance(self._rows[index.row()], str):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable

    def spoken(self, run: KnownRun) -> Sequence[str]:
        """Returns the parts of the text that screen readers read. Empty parts are left out."""
        raise NotImplementedError

    def tip(self, run: KnownRun) -> Sequence[str]:
        """Returns the lines of the tool tip. Empty lines are left out."""
        raise NotImplementedError


class RunRowDelegate(QStyledItemDelegate):
    """Paints the background of a run's row and the mark of the run. Derived classes also paint its texts."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        run: KnownRun | None = index.data(RUN)
        painter.save()
        if run is None:
            painter.setFont(theme().font("tiny"))
            painter.setPen(theme().pen("text2"))
            text = str(index.data()).upper()
            painter.drawText(rect.adjusted(12, 0, -12, -4), Qt.AlignmentFlag.AlignBottom, text)
        else:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            if state & (QStyle.StateFlag.State_Selected | QStyle.StateFlag.State_MouseOver):
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(theme().brush("accent_soft" if state & QStyle.StateFlag.State_Selected else "hover"))
                painter.drawRoundedRect(QRectF(rect.adjusted(6, 1, -6, -1)), 6, 6)
            mark = "unknown" if run.is_stale else self.mark_of(run)
            paint_state(painter, QRectF(rect.x() + 14, rect.y() + 8, 14, 14), mark)
            self.paint_texts(painter, QRect(rect.x() + 36, rect.y() + 5, rect.width() - 50, 19), index, run)
        painter.restore()

    def mark_of(self, run: KnownRun) -> str:
        """Returns the name of the mark of a run's state, for `paint_state`."""
        raise NotImplementedError

    def paint_texts(self, painter: QPainter, line: QRect, index: Index, run: KnownRun) -> None:
        """Paints the texts of a row. The first text is painted into `line`."""
        raise NotImplementedError


def ink_of(run: KnownRun) -> str:
    """Returns the colour token of the text that shows the state of a run."""
    return "fail" if run.state == "failed" and not run.is_stale else "text2"


def run_list_view(rows: RunRows, delegate: RunRowDelegate, name: str) -> QListView:
    """Returns the list view for the left panel. `name` is read by screen readers."""
    view = QListView()
    view.setModel(rows)
    delegate.setParent(view)
    view.setItemDelegate(delegate)
    view.setAccessibleName(name)
    view.setMouseTracking(True)
    view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
    view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    view.viewport().setAutoFillBackground(False)
    view.setStyleSheet("QListView { background: transparent; }")
    return view


def _key(row: KnownRun | str) -> str:
    return row if isinstance(row, str) else row.run_id
