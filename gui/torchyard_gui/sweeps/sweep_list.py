"""The list of sweeps, each with its state, name and best value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from torchyard_core.formatting import since
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.sweeps.labels import amount, mark_of, sweep_state
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided

Index = QModelIndex | QPersistentModelIndex
SWEEP = Qt.ItemDataRole.UserRole
"""The item data role of a row's KnownRun."""
ROW = 64


class SweepListModel(QAbstractListModel):
    """A list model with one row for each sweep."""

    def __init__(self, model: SweepsModel, parent: QObject | None = None):
        super().__init__(parent)
        self._model = model
        self._rows: tuple[KnownRun, ...] = ()

    def set_sweeps(self, sweeps: Sequence[KnownRun]) -> None:
        """Sets the sweeps. If the rows stay the same, so do the selection and the scroll position."""
        same = [run.run_id for run in sweeps] == [run.run_id for run in self._rows]
        if not same:
            self.beginResetModel()
        self._rows = tuple(sweeps)
        if not same:
            self.endResetModel()
        elif self._rows:
            self.dataChanged.emit(self.index(0), self.index(len(self._rows) - 1))

    def row_of(self, run_id: str) -> int:
        """Returns the row of a sweep, or -1."""
        return next((row for row, run in enumerate(self._rows) if run.run_id == run_id), -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        run = self._rows[index.row()]
        if role == SWEEP:
            return run
        if role == Qt.ItemDataRole.DisplayRole:
            return run.name or run.run_id
        lines = [run.name or run.run_id, self.progress_of(run), self.best_of(run)]
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return ", ".join(line for line in (*lines, run.run_id) if line)
        if role == Qt.ItemDataRole.ToolTipRole:
            return "\n".join(line for line in (*lines, run.run_id, run.reason) if line)
        return None

    def progress_of(self, run: KnownRun) -> str:
        """Returns the state of a sweep and the number of its trials that have ended."""
        table = self._model.table(run.run_id)
        if table is None:
            return sweep_state(run)
        done = table.count("complete", "failed", "pruned")
        text = self.tr("{state} · {done} of {wanted}")
        return text.format(state=sweep_state(run), done=done, wanted=table.wanted)

    def best_of(self, run: KnownRun) -> str:
        """Returns the best value of a sweep, if one is known, and the age of the sweep."""
        table = self._model.table(run.run_id)
        best = table.best if table is not None else None
        found = f"{table.metric} {amount(best.value)}" if table is not None and best is not None else ""
        return " · ".join(part for part in (found, since(run.submitted)) if part)


class SweepDelegate(QStyledItemDelegate):
    """Paints the row of a sweep: a mark, the name, its progress, and its best value."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(100, ROW)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        look = theme()
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        run: KnownRun = index.data(SWEEP)
        model = index.model()
        assert isinstance(model, SweepListModel)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if state & (QStyle.StateFlag.State_Selected | QStyle.StateFlag.State_MouseOver):
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.brush("accent_soft" if state & QStyle.StateFlag.State_Selected else "hover"))
            painter.drawRoundedRect(QRectF(rect.adjusted(6, 1, -6, -1)), 6, 6)
        stale = not run.is_fresh and not run.has_ended
        paint_state(painter, QRectF(rect.x() + 14, rect.y() + 8, 14, 14), "unknown" if stale else mark_of(run.state))
        line = QRect(rect.x() + 36, rect.y() + 5, rect.width() - 50, 19)
        draw_elided(painter, line, str(index.data()), "strong", "text")
        ink = "fail" if run.state == "failed" and not stale else "text2"
        draw_elided(painter, line.translated(0, 18), model.progress_of(run), "small", ink)
        draw_elided(painter, line.translated(0, 36), model.best_of(run), "small", "text2")
        painter.restore()


def sweep_list_view(model: SweepListModel, parent: QWidget | None = None) -> QListView:
    """Returns the list view for the left panel."""
    view = QListView(parent)
    view.setModel(model)
    view.setItemDelegate(SweepDelegate(view))
    view.setMouseTracking(True)
    view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
    view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    view.viewport().setAutoFillBackground(False)
    view.setStyleSheet("QListView { background: transparent; }")
    return view
