"""Parallel coordinates: one axis for each parameter and for the objective, and one line for each complete trial."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QLinearGradient, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from torchyard_agent.protocol.sweep_messages import ParameterValue
from torchyard_core.sweeps.trial_table import Trial
from torchyard_gui.sweeps.scales import Scale
from torchyard_gui.sweeps.trial_plot import HEAD, PAD, TrialPlot
from torchyard_gui.theme.theme import mixed_colors, theme
from torchyard_gui.widgets.elided_text import LEFT, RIGHT, draw_elided

MOST_LINES = 1000
"""Maximum number of lines. If there are more trials, only the best are shown."""
NAMES, ENDS = 18, 15
"""Height in pixels of the names above the axes, and of the numbers at the ends of an axis."""
BAR = 60
LEAST_ROOM = 14
"""Minimum distance in pixels between the texts of two categories."""


class ParallelPlot(TrialPlot):
    """Plot with a line for each complete trial. The colour of a line shows the trial's rank by value: the better the
    trial, the stronger the colour.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__("", parent)
        self._ranked: list[Trial] = []
        self._axes: list[tuple[str, Scale]] = []
        self.set_title(self.tr("Parameters of complete trials"))

    def trials(self) -> list[Trial]:
        return sorted(self._ranked, key=lambda trial: int(trial.trial))

    def prepare(self) -> None:
        table = self.table
        self._ranked, self._axes = [], []
        if table is None:
            return
        sign = 1.0 if table.goal == "minimize" else -1.0
        complete = [trial for trial in table.trials if trial.state == "complete" and trial.value is not None]
        self._ranked = sorted(complete, key=lambda trial: sign * (trial.value or 0.0))[:MOST_LINES]
        names = [name for name in table.parameters if any(name in trial.params for trial in self._ranked)]
        for name in names:
            self._axes.append((name, Scale(trial.params[name] for trial in self._ranked if name in trial.params)))
        self._axes.append((table.metric, Scale(trial.value or 0.0 for trial in self._ranked)))
        title = self.tr("Parameters of complete trials")
        if len(complete) > len(self._ranked):
            title = self.tr("Parameters of the best {count} trials").format(count=len(self._ranked))
        self.set_title(title)
        self.setToolTip("\n".join([title, *(name for name, _ in self._axes)]))

    def empty_text(self) -> str:
        return self.tr("No trial is complete yet.")

    def legend_width(self) -> int:
        return BAR + 100 if self._ranked else 0

    def line_of(self, trial: Trial) -> list[QPointF]:
        return [
            QPointF(self._x(number), self._y(scale, value))
            for number, (_, scale) in enumerate(self._axes)
            if (value := self._value(trial, number)) is not None
        ]

    def _value(self, trial: Trial, axis: int) -> ParameterValue | None:
        return trial.value if axis == len(self._axes) - 1 else trial.params.get(self._axes[axis][0])

    def _x(self, axis: int) -> float:
        area = self.area()
        return area.left() + (axis + 0.5) * area.width() / len(self._axes)

    def _y(self, scale: Scale, value: ParameterValue) -> float:
        box = self._box()
        return box.bottom() - scale.place(value) * box.height()

    def _box(self) -> QRectF:
        return self.area().adjusted(0, NAMES + ENDS, 0, -ENDS)

    def color_of(self, rank: int) -> QColor:
        """Returns the colour of a trial by its rank. The best trial has rank 0."""
        share = rank / max(1, len(self._ranked) - 1)
        return mixed_colors(theme().color("accent"), theme().color("hair"), share)

    def paint_trials(self, painter: QPainter) -> None:
        look = theme()
        for rank, trial in reversed(list(enumerate(self._ranked))):
            painter.setPen(QPen(self.color_of(rank), 1 if rank else 2))
            painter.drawPolyline(QPolygonF(self.line_of(trial)))
        chosen = next((trial for trial in self._ranked if trial.trial == self.current), None)
        if chosen is not None:
            painter.setPen(look.pen("text", 2))
            painter.drawPolyline(QPolygonF(self.line_of(chosen)))
        box = self._box()
        for number, (name, scale) in enumerate(self._axes):
            x = self._x(number)
            painter.setPen(look.pen("line"))
            painter.drawLine(QPointF(x, box.top()), QPointF(x, box.bottom()))
            self._paint_texts(painter, name, scale, x)
        self._paint_legend(painter)

    def _paint_texts(self, painter: QPainter, name: str, scale: Scale, x: float) -> None:
        """Paints the name of an axis above the axis, and the values: numbers at its ends, categories beside it."""
        area, box = self.area(), self._box()
        room = area.width() / len(self._axes) - 8
        middle = Qt.AlignmentFlag.AlignHCenter
        draw_elided(painter, QRectF(x - room / 2, area.top(), room, NAMES), name, "small", "text", middle)
        if not scale.categories:
            for share, text in scale.ticks():
                y = box.bottom() + 1 if share < 1 else box.top() - ENDS
                draw_elided(painter, QRectF(x - room / 2, y, room, ENDS), text, "tiny", "text2", middle)
            return
        texts = scale.ticks()
        every = max(1, int(LEAST_ROOM * len(texts) / max(1.0, box.height())) + 1) if len(texts) > 1 else 1
        for share, text in texts[::every]:
            y = box.bottom() - share * box.height()
            width = min(room / 2 - 4, painter.fontMetrics().horizontalAdvance(text) + 4.0)
            label = QRectF(x + 5, y - 7, width, 14)
            painter.fillRect(label.adjusted(-4, 0, 0, 0), look_through())  # Hides lines behind the text.
            draw_elided(painter, label, text, "tiny", "text2", LEFT)

    def _paint_legend(self, painter: QPainter) -> None:
        right = self.width() - PAD
        bar = QRectF(right - BAR - 40, HEAD / 2 - 1, BAR, 5)
        shades = QLinearGradient(bar.topLeft(), bar.topRight())
        shades.setColorAt(0, self.color_of(0))
        shades.setColorAt(1, theme().color("hair"))
        painter.fillRect(bar, shades)
        draw_elided(painter, QRectF(bar.left() - 46, 4, 40, HEAD - 6), self.tr("best"), "tiny", "text2", RIGHT)
        draw_elided(painter, QRectF(bar.right() + 6, 4, 34, HEAD - 6), self.tr("worst"), "tiny", "text2")


def look_through() -> QColor:
    """Returns the card's colour, slightly translucent, as the background of text that is painted over lines."""
    return theme().color("s2", 0.92)
