"""The plot of the objective over the trials, with the line of the best value so far."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from torchyard_core.sweeps.trial_table import SweepTable, Trial
from torchyard_gui.sweeps.labels import value_of
from torchyard_gui.sweeps.scales import Scale
from torchyard_gui.sweeps.trial_plot import HEAD, PAD, TrialPlot
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import LEFT, RIGHT, draw_elided

AXIS, FOOT = 76, 18
"""Width in pixels of the area for the values, to the left of the plot, and height in pixels of the area for the numbers
of trials, below the plot.
"""
DOT = 7.0


class HistoryPlot(TrialPlot):
    """Plot of the trials' values. The x axis shows the number of a trial, the y axis its value.

    A complete trial is a dot, a running trial a green ring, a failed trial a cross at the bottom, a pruned trial a
    ring, and an interrupted trial a square.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__("", parent)
        self._scale = Scale(())
        self._shown: list[Trial] = []
        self.set_title(self.tr("Objective"))

    def trials(self) -> list[Trial]:
        return self._shown

    def prepare(self) -> None:
        table = self.table
        if table is None:
            self._shown = []
            return
        self._shown = [trial for trial in table.trials if value_of(trial) is not None or trial.state == "failed"]
        values = [trial.value for trial in self._shown if trial.state == "complete" and trial.value is not None]
        others = [value for trial in self._shown if (value := value_of(trial)) is not None]
        self._scale = Scale(values or others)
        title = self.tr("{metric} by trial, logarithmic") if self._scale.is_log else self.tr("{metric} by trial")
        self.set_title(title.format(metric=table.metric))

    def empty_text(self) -> str:
        return self.tr("No trial has reported a value yet.")

    def legend_width(self) -> int:
        return sum(width for _, _, width in self._legend()) if self._shown else 0

    def _legend(self) -> list[tuple[str, str, int]]:
        """Returns the legend's entries as (state, label, width in pixels), as many as fit beside the title."""
        present = {trial.state for trial in self._shown}
        texts = {
            "best": self.tr("best so far"),
            "failed": self.tr("failed"),
            "pruned": self.tr("pruned"),
            "interrupted": self.tr("interrupted"),
            "running": self.tr("running"),
            "complete": self.tr("complete"),
        }
        metrics = QFontMetrics(theme().font("tiny"))
        room = self.width() - 3 * PAD - QFontMetrics(theme().font("small_strong")).horizontalAdvance(self.title)
        entries: list[tuple[str, str, int]] = []
        for state, text in texts.items():
            width = metrics.horizontalAdvance(text) + 26
            if state in present or (state == "best" and "complete" in present):
                if width > room:
                    break
                room -= width
                entries.append((state, text, width))
        return entries[::-1]

    def line_of(self, trial: Trial) -> list[QPointF]:
        value = value_of(trial)
        y = self._box().bottom() if trial.state == "failed" or value is None else self._y(value)
        return [QPointF(self._x(int(trial.trial)), y)]

    def _x(self, number: int) -> float:
        box, table = self._box(), self.table
        last = int(table.trials[-1].trial) if table is not None and table.trials else 1
        return box.left() + (number - 0.5) / last * box.width()

    def _y(self, value: float) -> float:
        box = self._box().adjusted(0, DOT, 0, -2 * DOT)
        return box.bottom() - self._scale.place(value) * box.height()

    def _box(self) -> QRectF:
        return self.area().adjusted(AXIS, 0, 0, -FOOT)

    def paint_trials(self, painter: QPainter) -> None:
        look, box, table = theme(), self._box(), self.table
        if table is None:
            return
        painter.setPen(look.pen("hair"))
        painter.drawLine(box.bottomLeft(), box.bottomRight())
        for share, text in self._scale.ticks():
            y = box.bottom() - 2 * DOT - share * (box.height() - 3 * DOT)
            painter.setPen(look.pen("hair"))
            painter.drawLine(QPointF(box.left(), y), QPointF(box.right(), y))
            draw_elided(painter, QRectF(PAD, y - 8, AXIS - 8, 16), text, "tiny", "text2", RIGHT)
        foot = QRectF(box.left(), box.bottom() + 4, box.width(), FOOT - 2)
        draw_elided(painter, foot, self.tr("trial 1"), "tiny", "text2", LEFT)
        if len(table.trials) > 1:
            draw_elided(painter, foot, str(table.trials[-1].trial), "tiny", "text2", RIGHT)
        self._paint_legend(painter)
        self._paint_best(painter, table, box)
        places: dict[str, QPolygonF] = {}
        for trial in self._shown:
            places.setdefault(trial.state, QPolygonF()).append(self.line_of(trial)[0])
        for state, points in places.items():
            paint_marks(painter, points, state)
        chosen = next((trial for trial in self._shown if trial.trial == self.current), None)
        if chosen is not None:
            painter.setPen(look.pen("text", 2))
            painter.drawEllipse(self.line_of(chosen)[0], DOT, DOT)

    def _paint_best(self, painter: QPainter, table: SweepTable, box: QRectF) -> None:
        """Paints the best value so far as a step function that extends to the right edge of the plot."""
        line = QPolygonF()
        for number, value in table.best_so_far():
            at = QPointF(self._x(number), self._y(value))
            if not line.isEmpty():
                line.append(QPointF(at.x(), line.last().y()))
            line.append(at)
        if not line.isEmpty():
            line.append(QPointF(box.right(), line.last().y()))
            painter.setPen(theme().pen("accent", 2))
            painter.drawPolyline(line)

    def _paint_legend(self, painter: QPainter) -> None:
        x = float(self.width() - PAD - self.legend_width())
        for state, text, width in self._legend():
            middle = QPointF(x + 12, HEAD / 2 + 1)
            if state != "best":
                paint_marks(painter, QPolygonF([middle]), state)
            else:
                painter.setPen(theme().pen("accent", 2))
                painter.drawLine(middle - QPointF(6, 0), middle + QPointF(6, 0))
            draw_elided(painter, QRectF(x + 22, 4, width - 22, HEAD - 6), text, "tiny", "text2")
            x += width


def paint_marks(painter: QPainter, points: QPolygonF, state: str) -> None:
    """Paints the marks of trials in one state."""
    if points.isEmpty():
        return
    look = theme()
    if state == "complete":
        # A point drawn with a round pen is painted much faster than an ellipse.
        painter.setPen(QPen(look.color("worker"), DOT, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
        painter.drawPoints(points)
        return
    painter.setPen(look.pen({"failed": "fail", "running": "run"}.get(state, "text2"), 1.5))
    for number in range(points.size()):
        at = points.at(number)
        if state == "failed":
            for slope in (1, -1):
                painter.drawLine(at - QPointF(3.5, 3.5 * slope), at + QPointF(3.5, 3.5 * slope))
        elif state == "interrupted":
            painter.drawRect(QRectF(at.x() - 3, at.y() - 3, 6, 6))
        else:
            painter.drawEllipse(at, DOT / 2, DOT / 2)
            if state == "running":
                painter.drawPoint(at)
