"""Plot widgets in the style of the window: axes, curves and legend entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyqtgraph as pg
from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import ElidedLabel
from torchyard_gui.widgets.layouts import hbox

COLOURS = ("worker", "chief", "reducer", "evaluator", "ps", "accent", "run", "text2")
"""The colours of curves, in turn. The ninth and all later curves are dashed."""


def make_plot(title: str, unit: str, axis: pg.AxisItem | None = None, parent: QWidget | None = None) -> pg.PlotWidget:
    """Returns an empty plot. The caller must set its ranges. The wheel and drags only affect the x axis."""
    plot = pg.PlotWidget(parent, axisItems={} if axis is None else {"bottom": axis}, enableMenu=False)
    item = plot.getPlotItem()
    item.hideButtons()
    item.showGrid(x=False, y=True, alpha=0.12)
    item.titleLabel.item.setPos(0, 0)
    item.getAxis("left").setWidth(52)
    item.getAxis("left").enableAutoSIPrefix(False)
    item.getAxis("bottom").enableAutoSIPrefix(False)
    plot.setProperty("card", True)
    plot.setFrameShape(plot.Shape.NoFrame)
    plot.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    view = item.getViewBox()
    view.disableAutoRange()
    view.setMouseEnabled(x=True, y=False)
    name_plot(plot, title, unit)
    return plot


def name_plot(plot: pg.PlotWidget, title: str, unit: str = "") -> None:
    """Sets the title of a plot, also for screen readers."""
    text = f"{title} ({unit})" if unit else title
    plot.getPlotItem().setTitle(text, color=theme().tokens.text2, size="12px", justify="left")
    plot.setAccessibleName(title)


def style_plot(plot: pg.PlotWidget) -> None:
    """Applies the colours of the theme."""
    look = theme()
    plot.setBackground(look.color("s2"))
    item = plot.getPlotItem()
    for side in ("left", "bottom"):
        axis = item.getAxis(side)
        axis.setPen(look.pen("hair"))
        axis.setTextPen(look.pen("text2"))
        axis.setStyle(tickFont=look.font("tiny"), tickLength=-4)
    item.setTitle(item.titleLabel.text, color=look.tokens.text2, size="12px", justify="left")


class SharedAxis(QObject):
    """Keeps the x ranges of plots equal. pyqtgraph's own links would align plots by their positions on the screen."""

    def __init__(self, plots: Iterable[pg.PlotWidget], parent: QObject) -> None:
        super().__init__(parent)
        self._views = [plot.getPlotItem().getViewBox() for plot in plots]
        self._is_following = False
        for view in self._views:
            view.sigXRangeChanged.connect(self._follow)

    @property
    def range(self) -> tuple[float, float]:
        low, high = self._views[0].viewRange()[0]
        return low, high

    def set_range(self, low: float, high: float) -> None:
        self._views[0].setXRange(low, high, padding=0)

    def _follow(self, source: pg.ViewBox, limits: Sequence[float]) -> None:
        if self._is_following:
            return
        self._is_following = True
        for view in self._views:
            if view is not source:
                view.setXRange(limits[0], limits[1], padding=0)
        self._is_following = False


def amount(value: float) -> str:
    """Returns a value as text with at most four significant digits, such as 0.4127, or from 1,000 as an integer."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def curve_pen(number: int) -> QPen:
    """Returns a pen of width 1, because painting with wider pens takes seconds per frame."""
    pen = QPen(theme().pen(COLOURS[number % len(COLOURS)]))
    pen.setCosmetic(True)
    if number >= len(COLOURS):
        pen.setStyle(Qt.PenStyle.DashLine)
    return pen


class PlotKey(QWidget):
    """An entry of the legend: a curve's line and its name."""

    def __init__(self, name: str, number: int):
        super().__init__()
        self._number = number
        hbox(ElidedLabel(name, role="small", ink="2"), parent=self, margins=(20, 0, 0, 0))
        theme().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pen = curve_pen(self._number)
        pen.setWidth(2)
        painter.setPen(pen)
        middle = self.height() // 2
        painter.drawLine(0, middle, 14, middle)
