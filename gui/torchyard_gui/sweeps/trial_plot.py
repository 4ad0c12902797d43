"""The base class of plots that show trials and let the user select a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from torchyard_core.sweeps.trial_table import SweepTable, Trial
from torchyard_gui.sweeps.labels import about_trial
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided

HEAD, PAD = 28, 10
NEAR = 8.0
"""Maximum distance in pixels at which the pointer selects a trial."""


class TrialPlot(QWidget):
    """A plot on a card with a title. A click, or the Left, Right, Home or End key, selects a trial."""

    chosen = Signal(str)
    """Emitted with the number of the trial that the user has selected."""

    def __init__(self, title: str, parent: QWidget | None = None):
        super().__init__(parent)
        self.table: SweepTable | None = None
        self.current = ""
        """The number of the selected trial, or ""."""
        self.set_title(title)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        theme().changed.connect(self.update)

    def set_title(self, title: str) -> None:
        self.title = title
        self.setAccessibleName(title)
        self.setToolTip(title)

    def show_table(self, table: SweepTable | None) -> None:
        self.table = table
        self.prepare()
        self._describe()
        self.update()

    def choose(self, number: str) -> None:
        """Selects a trial without emitting `chosen`."""
        self.current = number
        self._describe()
        self.update()

    def trials(self) -> Sequence[Trial]:
        """Returns the trials that the plot shows, in the order in which the arrow keys select them."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Computes what painting needs, such as scales. Called after the trials have changed, before painting."""

    def line_of(self, trial: Trial) -> list[QPointF]:
        """Returns the points at which a trial is painted."""
        raise NotImplementedError

    def paint_trials(self, painter: QPainter) -> None:
        """Paints the trials. Called only if there is at least one trial."""
        raise NotImplementedError

    def empty_text(self) -> str:
        """Returns the sentence that is shown while there are no trials."""
        raise NotImplementedError

    def legend_width(self) -> int:
        """Returns the width in pixels of the legend beside the title."""
        return 0

    def area(self) -> QRectF:
        """Returns the rectangle below the title."""
        return QRectF(self.rect()).adjusted(PAD, HEAD, -PAD, -PAD)

    def trial_at(self, place: QPointF) -> Trial | None:
        """Returns the trial nearest to a point, or None if no trial is within `NEAR` pixels of the point."""
        distances = [(_distance(place, self.line_of(trial)), int(trial.trial), trial) for trial in self.trials()]
        nearest = min(distances, default=None, key=lambda each: each[:2])
        return nearest[2] if nearest is not None and nearest[0] <= NEAR else None

    def sizeHint(self) -> QSize:
        return QSize(320, 180)

    def minimumSizeHint(self) -> QSize:
        return QSize(160, 110)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and self.table is not None:
            trial = self.trial_at(QPointF(event.pos()))
            if trial is not None:
                QToolTip.showText(event.globalPos(), about_trial(self.table, trial), self)
                return True
        return super().event(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        trial = self.trial_at(event.position())
        if trial is not None and event.button() == Qt.MouseButton.LeftButton:
            self.chosen.emit(trial.trial)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        numbers = [trial.trial for trial in self.trials()]
        if numbers and event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Home, Qt.Key.Key_End):
            here = numbers.index(self.current) if self.current in numbers else None
            last = len(numbers) - 1
            step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()), 0)
            if event.key() == Qt.Key.Key_Home:
                there = 0
            elif event.key() == Qt.Key.Key_End or here is None:
                there = last
            else:
                there = min(max(here + step, 0), last)
            self.chosen.emit(numbers[there])
            return
        super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint_card(painter, QRectF(self.rect()), is_focused=self.hasFocus())
        room = QRectF(PAD, 4, self.width() - 2 * PAD - self.legend_width(), HEAD - 6)
        draw_elided(painter, room, self.title, "small_strong", "text2")
        if self.trials():
            self.paint_trials(painter)
        else:
            paint_sentence(painter, self.area(), self.empty_text())

    def _describe(self) -> None:
        table = self.table
        trial = table.trial(self.current) if table is not None and self.current else None
        self.setAccessibleDescription(about_trial(table, trial) if table is not None and trial is not None else "")


def paint_card(painter: QPainter, rect: QRectF, *, is_focused: bool = False) -> None:
    """Paints the background of a plot, with a frame."""
    look = theme()
    painter.setBrush(look.brush("s2"))
    painter.setPen(look.pen("accent" if is_focused else "hair"))
    painter.drawRoundedRect(rect.adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
    painter.setBrush(Qt.BrushStyle.NoBrush)


def paint_sentence(painter: QPainter, area: QRectF, text: str) -> None:
    """Paints wrapped text in the middle of an area."""
    painter.setFont(theme().font("small"))
    painter.setPen(theme().pen("text2"))
    painter.drawText(area, int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap), text)


def _distance(place: QPointF, line: Iterable[QPointF]) -> float:
    """Returns the distance from a point to a polyline, given by its points."""
    points = list(line)
    if len(points) == 1:
        return _length(place - points[0])
    return min((_to_segment(place, *ends) for ends in pairwise(points)), default=float("inf"))


def _to_segment(place: QPointF, one: QPointF, other: QPointF) -> float:
    along = other - one
    square = QPointF.dotProduct(along, along)
    share = min(max(QPointF.dotProduct(place - one, along) / square, 0.0), 1.0) if square else 0.0
    return _length(place - (one + along * share))


def _length(vector: QPointF) -> float:
    return math.hypot(vector.x(), vector.y())
