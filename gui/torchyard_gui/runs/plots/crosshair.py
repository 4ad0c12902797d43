"""A crosshair for plots that share a horizontal axis: a line in each plot, and the values of the plot's curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, QPointF, QRect, Qt, QTimer
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from torchyard_gui.theme.theme import theme

EVERY_MS = 30
"""Minimum interval in milliseconds between two moves of the line, because each move repaints a strip of every plot."""
MARGIN = 8
MOST_VALUES = 4
"""Maximum number of values beside the title of a plot over time.

If more curves have a value, only the smallest and the largest value are shown. A comparison of runs has no maximum.
"""

Values = Sequence[tuple[str, QPen]]
"""Formatted values, each with the pen of its curve."""


class Crosshair(QObject):
    """A crosshair that follows the pointer over all plots. The owner calls `move_by` when the user presses a key."""

    def __init__(
        self,
        plots: Mapping[str, pg.PlotWidget],
        values_at: Callable[[str, float], Values],
        time_text: Callable[[float], str],
        parent: QWidget,
    ) -> None:
        """Adds a line and a readout to each plot.

        Args:
            values_at: Returns the values of a plot's curves at a position.
            time_text: Returns the text of a position, such as a time.
        """
        super().__init__(parent)
        self.position: float | None = None
        self._plots = dict(plots)
        self._values_at = values_at
        self._time_text = time_text
        self._lines: dict[str, pg.InfiniteLine] = {}
        self.readouts: dict[str, Readout] = {}
        self._wanted: float | None = None
        self._soon = QTimer(self, singleShot=True, interval=EVERY_MS)
        self._soon.timeout.connect(self._take_wanted)
        for kind, plot in self._plots.items():
            line = pg.InfiniteLine(angle=90, movable=False)
            line.setVisible(False)
            plot.getPlotItem().addItem(line, ignoreBounds=True)
            self._lines[kind] = line
            self.readouts[kind] = Readout(plot)
            plot.scene().sigMouseMoved.connect(lambda point, kind=kind: self._pointed(kind, point))
            plot.viewport().installEventFilter(self)
        theme().changed.connect(self._apply_theme)
        self._apply_theme()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Leave:
            self._soon.stop()
            self.move_to(None)
        elif event.type() == QEvent.Type.Resize:
            for readout in self.readouts.values():
                readout.place()
        return False

    def move_to(self, position: float | None) -> None:
        """Shows the line at a position of the horizontal axis; None hides it."""
        self.position = position
        for line in self._lines.values():
            line.setVisible(position is not None)
            if position is not None:
                line.setPos(position)
        self.refresh()

    def move_by(self, share: float) -> None:
        """Moves the line by a fraction of the visible range, within that range. A hidden line appears in the middle."""
        low, high = next(plot for plot in self._plots.values() if plot.isVisible()).getViewBox().viewRange()[0]
        begin = (low + high) / 2 if self.position is None else self.position + share * (high - low)
        self.move_to(min(high, max(low, begin)))

    def refresh(self) -> None:
        """Updates the values, for example after new samples."""
        for kind, plot in self._plots.items():
            readout = self.readouts[kind]
            if self.position is None or not plot.isVisible():
                readout.show_values("", ())
                continue
            values = self._values_at(kind, self.position)
            readout.show_values(self._time_text(self.position), values)
            plot.setAccessibleDescription(readout.text)

    def stop(self) -> None:
        self._soon.stop()

    def _pointed(self, kind: str, point: QPointF) -> None:
        view = self._plots[kind].getPlotItem().getViewBox()
        self._wanted = view.mapSceneToView(point).x() if view.sceneBoundingRect().contains(point) else None
        if not self._soon.isActive():
            self._soon.start()

    def _take_wanted(self) -> None:
        if self._wanted != self.position:
            self.move_to(self._wanted)

    def _apply_theme(self) -> None:
        for line in self._lines.values():
            line.setPen(theme().pen("text3"))


class Readout(QWidget):
    """Label with the values at the crosshair, to the right of a plot's title. Mouse events pass through it."""

    def __init__(self, plot: pg.PlotWidget) -> None:
        super().__init__(plot)
        self._plot = plot
        self._time = ""
        self._values: Values = ()
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    @property
    def text(self) -> str:
        """The position and the values as one string."""
        return " ".join([self._time, *(text for text, _ in self._values)])

    def show_values(self, time: str, values: Values) -> None:
        self._time, self._values = time, values
        self.setVisible(bool(time))
        self.place()
        self.update()

    def place(self) -> None:
        """Adapts the position and size to the plot's width."""
        height = theme().metrics.row - 6
        left = self._plot.width() // 3
        self.setGeometry(left, 2, max(1, self._plot.width() - left - MARGIN), height)

    def paintEvent(self, event: QPaintEvent) -> None:
        look = theme()
        painter = QPainter(self)
        painter.setFont(look.font("small"))
        metrics = painter.fontMetrics()
        right = self.width()
        side = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        for text, pen in [*reversed(self._values), (self._time, look.pen("text2"))]:
            width = metrics.horizontalAdvance(text)
            if width > right:
                break
            painter.setPen(pen)
            painter.drawText(QRect(right - width, 0, width, self.height()), side, text)
            right -= width + MARGIN
