"""The list of runs. Live runs are first, and each run has a state, a name and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from torchyard_core.launch.runs.annotations import Annotation
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.run_state_types import when
from torchyard_gui.runs.labels import clock, mark_of, moment_in_full, state_word
from torchyard_gui.runs.run_titles import restart_of, start_of, title_of
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided

Index = QModelIndex | QPersistentModelIndex
RUN = Qt.ItemDataRole.UserRole
"""The item data role of a row's KnownRun. Headings have no value for it."""
ROW, HEADING = 48, 28


class RunListModel(QAbstractListModel):
    """A list model with one row for each run and each heading."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self._all: tuple[KnownRun, ...] = ()
        self._rows: list[KnownRun | str] = []
        self._filter = ""
        self._annotations: dict[str, Annotation] = {}

    def set_runs(self, runs: Sequence[KnownRun], annotations: Mapping[str, Annotation]) -> None:
        """Sets the runs and their notes. If the rows stay the same, so do the selection and the scroll position."""
        self._all = tuple(runs)
        self._annotations = dict(annotations)
        self._arrange()

    def set_filter(self, text: str) -> None:
        """Shows only the runs whose name, ID, hosts, state, tags (`#baseline`) or note contain `text`."""
        self._filter = text.strip().lower()
        self._arrange()

    def row_of(self, run_id: str) -> int:
        """Returns the row of a run, or -1."""
        rows = (row for row, run in enumerate(self._rows) if isinstance(run, KnownRun) and run.run_id == run_id)
        return next(rows, -1)

    def first_run(self) -> KnownRun | None:
        return next((run for run in self._rows if isinstance(run, KnownRun)), None)

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
            parts = (
                title_of(row, self._all),
                self.state_of(row),
                restart_of(row, self._all),
                self.tags_of(row),
                row.run_id,
            )
            return ", ".join(part for part in parts if part)
        if role == Qt.ItemDataRole.ToolTipRole:
            again = self.tr("Restart of {run}").format(run=row.restarted_from) if row.restarted_from else ""
            full = [title_of(row, self._all), self.details_of(row), row.run_id, again, " ".join(row.hosts)]
            lines = [*full, moment_in_full(when(row.submitted)), "" if row.state == "failed" else row.reason]
            lines.append(self._annotations.get(row.run_id, Annotation()).text)
            return "\n".join(line for line in lines if line)
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        if isinstance(self._rows[index.row()], str):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable

    def state_of(self, run: KnownRun) -> str:
        """Returns the name of the state. If the state may be outdated, adds the time of the last contact."""
        word = state_word(run.state)
        if run.is_fresh or run.has_ended:
            return word
        return self.tr("{state} as of {time}").format(state=word, time=clock(when(run.as_of)))

    @property
    def runs(self) -> tuple[KnownRun, ...]:
        """All runs, including those that the filter hides."""
        return self._all

    def tags_of(self, run: KnownRun) -> str:
        """Returns the tags of a run, such as `#baseline #lr-3`."""
        return " ".join(f"#{tag}" for tag in self._annotations.get(run.run_id, Annotation()).tags)

    def details_of(self, run: KnownRun) -> str:
        """Returns the second line of a row: the state, the reason for a failure, and then details that are less
        important.
        """
        hosts = run.hosts[0] if len(run.hosts) == 1 else self.tr("{count} hosts").format(count=len(run.hosts))
        reason = run.reason if run.state == "failed" else ""
        parts = self.state_of(run), reason, self.time_of(run)[1], self.tags_of(run), restart_of(run, self._all)
        return " · ".join(part for part in (*parts, "" if reason else hosts) if part)

    def time_of(self, run: KnownRun) -> tuple[str, str]:
        """Returns the start of a run as two texts, one for each line of a row. The second text is empty if the start is
        short.

        A day and a time together would leave no room for the name.
        """
        day, _, clock_text = start_of(run, self._all).rpartition(" ")
        return (day, clock_text) if ":" in clock_text and day else (f"{day} {clock_text}".strip(), "")

    def _text(self, run: KnownRun) -> str:
        """Returns the text in which the filter looks for words."""
        about = self._annotations.get(run.run_id, Annotation()).text
        return f"{run.name} {run.run_id} {' '.join(run.hosts)} {run.state} {run.primary} {about}".lower()

    def _arrange(self) -> None:
        shown = [run for run in self._all if self._filter in self._text(run)]
        live = [run for run in shown if not run.has_ended]
        past = [run for run in shown if run.has_ended]
        rows: list[KnownRun | str] = []
        if live:
            rows += [self.tr("Live"), *live]
        if past:
            rows += [self.tr("Past"), *past]
        if [_key(row) for row in rows] == [_key(row) for row in self._rows]:
            self._rows = rows
            if rows:
                self.dataChanged.emit(self.index(0), self.index(len(rows) - 1))
            return
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()


class RunDelegate(QStyledItemDelegate):
    """Paints the row of a run: a mark, the name, and a line with details."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(100, ROW if index.data(RUN) else HEADING)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        look = theme()
        rect: QRect = option.rect
        run: KnownRun | None = index.data(RUN)
        painter.save()
        if run is None:
            painter.setFont(look.font("tiny"))
            painter.setPen(look.pen("text2"))
            text = str(index.data()).upper()
            painter.drawText(rect.adjusted(12, 0, -12, -4), Qt.AlignmentFlag.AlignBottom, text)
            painter.restore()
            return
        state: QStyle.StateFlag = option.state
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(rect.adjusted(6, 1, -6, -1))
        if state & (QStyle.StateFlag.State_Selected | QStyle.StateFlag.State_MouseOver):
            selected = bool(state & QStyle.StateFlag.State_Selected)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.brush("accent_soft" if selected else "hover"))
            painter.drawRoundedRect(box, 6, 6)
        stale = not run.is_fresh and not run.has_ended
        paint_state(painter, QRectF(rect.x() + 14, rect.y() + 8, 14, 14), "unknown" if stale else mark_of(run.state))
        left, right = rect.x() + 36, rect.right() - 14
        model = index.model()
        assert isinstance(model, RunListModel)
        time_text, _ = model.time_of(run)
        painter.setFont(look.font("small"))
        painter.setPen(look.pen("text3"))
        time_width = painter.fontMetrics().horizontalAdvance(time_text)
        top = QRect(left, rect.y() + 5, right - left, 19)
        painter.drawText(top, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, time_text)
        painter.setFont(look.font("strong"))
        painter.setPen(look.pen("text"))
        top.setRight(right - time_width - 8)
        draw_elided(painter, top, run.name or run.run_id)
        ink = "fail" if run.state == "failed" and not stale else "text2"
        second = QRect(left, rect.y() + 24, right - left, 19)
        draw_elided(painter, second, model.details_of(run), "small", ink)
        painter.restore()


def run_list_view(model: RunListModel, parent: QWidget | None = None) -> QListView:
    """Returns the list view for the left panel."""
    view = QListView(parent)
    view.setModel(model)
    view.setItemDelegate(RunDelegate(view))
    view.setMouseTracking(True)
    view.setSelectionMode(QListView.SelectionMode.ExtendedSelection)
    view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
    view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    view.viewport().setAutoFillBackground(False)
    view.setStyleSheet("QListView { background: transparent; }")
    return view


def _key(row: KnownRun | str) -> str:
    return row if isinstance(row, str) else row.run_id
