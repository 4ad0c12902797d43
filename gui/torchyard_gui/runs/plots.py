"""Plots of the selected replicas over time: training metrics, the parts of steps, or custom metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, QTimer
from PySide6.QtGui import QHideEvent, QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QGridLayout, QWidget

from torchyard_core.replica_metrics import OWN
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state_types import ReplicaStatus
from torchyard_gui.bridge.step_breakdown import name_of
from torchyard_gui.runs.downsampling import Values, bounds, calmed, extremes
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import EmptyState, Segmented, clear_layout, label
from torchyard_gui.widgets.layouts import hbox, vbox

STEP_PLOTS = ("compute_s", "exchange_s", "wait_s", "staleness")
OWN_PLOT = "own"
"""Metrics with names chosen by the script, plotted one at a time."""
CHOICES = {"progress": ("throughput", "loss", "use", "memory"), "step": STEP_PLOTS, "own": (OWN_PLOT,)}
"""Plots shown together on one time axis."""
MOST = 16
"""Most curves; more are indistinguishable."""
KEYS_ACROSS = 6
LEAST_SPAN_S = 60.0
"""Shortest time span, so that a new run is not stretched."""
ZOOM = 1.5
PAN = 0.2
AFTER_ZOOM_MS = 30
"""Delay after a zoom before points are downsampled again."""


class Plots(QWidget):
    """Up to four plots over a common time axis.

    The wheel, + and - zoom; dragging and the arrow keys move; 0 shows the whole run. Ranges change in steps, and points
    are downsampled to the visible resolution. The built-in methods of pyqtgraph are twice as slow for 16 curves of an
    hour.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._feed: RunFeed | None = None
        self._names: list[str] = []
        self._is_old = False
        self._shows_all = True
        """Whether the time axis covers the whole run, not a zoomed part."""
        self._settle = QTimer(self, singleShot=True, interval=AFTER_ZOOM_MS)
        self._settle.timeout.connect(self._draw)
        self._legend = QGridLayout()
        self._legend.setHorizontalSpacing(14)
        self._legend.setVerticalSpacing(2)
        self._remark = label(role="small", ink="2")
        self._plots = {
            "throughput": self._plot(self.tr("Throughput"), self.tr("samples/s")),
            "loss": self._plot(self.tr("Loss"), ""),
            "use": self._plot(self.tr("Use"), "%"),
            "memory": self._plot(self.tr("Memory"), "GB"),
            "compute_s": self._plot(name_of("compute_s"), self.tr("s a step")),
            "exchange_s": self._plot(name_of("exchange_s"), self.tr("s a step")),
            "wait_s": self._plot(name_of("wait_s"), self.tr("s a step")),
            "staleness": self._plot(name_of("staleness"), self.tr("versions")),
            OWN_PLOT: self._plot(self.tr("Reported"), ""),
        }
        self.choice = Segmented(
            [("progress", self.tr("Progress")), ("step", self.tr("Step")), ("own", self.tr("Reported"))]
        )
        self.choice.setAccessibleName(self.tr("What is plotted"))
        self.choice.button("progress").setToolTip(self.tr("Throughput, loss, use and memory"))
        self.choice.button("step").setToolTip(self.tr("What a step is made of: compute, exchange, waiting, staleness"))
        self.choice.button("own").setToolTip(self.tr("What the script reports by names of its own"))
        self.choice.button("own").setEnabled(False)
        self.choice.changed.connect(self._choose)
        self._chosen = self.choice.value
        self.reported = QComboBox()
        self.reported.setAccessibleName(self.tr("Reported number"))
        self.reported.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.reported.setVisible(False)
        self.reported.currentTextChanged.connect(self._show_metric)
        self._curves: dict[str, list[pg.PlotCurveItem]] = {kind: [] for kind in self._plots}
        self._drawn: list[tuple[float | None, int]] = []
        """By replica: time and number of the samples drawn."""
        for kind, plot in self._plots.items():
            view = plot.getPlotItem().getViewBox()
            # The view boxes are linked directly, because pyqtgraph aligns linked plots by their screen positions.
            first = next(kinds[0] for kinds in CHOICES.values() if kind in kinds)
            if kind != first:
                view.setXLink(self._plots[first].getPlotItem().getViewBox())
            view.sigRangeChangedManually.connect(self._moved_by_hand)
        grid = QGridLayout()
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(12)
        for number, plot in enumerate(self._plots.values()):
            grid.addWidget(plot, number // 2, number % 2, 1, 2 if plot is self._plots[OWN_PLOT] else 1)
            plot.setVisible(number < 4)
        self._grid = QWidget()
        self._grid.setLayout(grid)
        self.nothing = EmptyState(self.tr("No curves of this run"), "", icon_name="chart")
        head = hbox(self._legend, None)
        head.addWidget(self._remark, 0, Qt.AlignmentFlag.AlignTop)
        head.addWidget(self.reported, 0, Qt.AlignmentFlag.AlignTop)
        head.addWidget(self.choice, 0, Qt.AlignmentFlag.AlignTop)
        vbox(head, (self._grid, 1), (self.nothing, 1), parent=self, margins=(16, 12, 16, 12), spacing=10)
        theme().changed.connect(self._apply_theme)
        self._apply_theme()
        self._say_nothing()

    def _choose(self, choice: str) -> None:
        before, self._chosen = CHOICES[self._chosen][0], choice
        self._time_view.setXRange(*self._plots[before].getPlotItem().getViewBox().viewRange()[0], padding=0)
        for kind, plot in self._plots.items():
            plot.setVisible(kind in CHOICES[choice])
        self.reported.setVisible(choice == "own")
        self._drawn.clear()
        self.refresh()

    def _show_metric(self, name: str) -> None:
        self._title_own(name)
        self._drawn.clear()
        self.refresh()

    def _title_own(self, name: str) -> None:
        plot = self._plots[OWN_PLOT]
        title = name or self.tr("Reported")
        plot.getPlotItem().setTitle(title, color=theme().tokens.text2, size="12px", justify="left")
        plot.getPlotItem().getViewBox().setYRange(0, 1, padding=0)
        plot.setAccessibleName(title)

    def _offer_metrics(self) -> None:
        """Offers the custom metrics of the selected replicas. The current choice is kept if possible."""
        tracks = self._feed.picture.tracks if self._feed else {}
        found = sorted({own for name in self._names if name in tracks for own in tracks[name].ring.own})
        if found == [self.reported.itemText(row) for row in range(self.reported.count())]:
            return
        self.choice.button("own").setEnabled(bool(found) or self.choice.value == "own")
        chosen = self.reported.currentText()
        with QSignalBlocker(self.reported):
            self.reported.clear()
            self.reported.addItems(found)
            self.reported.setCurrentIndex(found.index(chosen) if chosen in found else 0)
        if self.reported.currentText() != chosen:
            self._title_own(self.reported.currentText())
            self._drawn.clear()

    @property
    def _shown(self) -> list[str]:
        """The kinds of the visible plots."""
        return list(CHOICES[self.choice.value])

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def set_feed(self, feed: RunFeed | None) -> None:
        """Shows the plots of another run."""
        self._feed = feed
        self.set_names([])

    def set_names(self, names: Sequence[str]) -> None:
        """Sets the replicas to plot. Only the first 16 are plotted."""
        self._names = list(names)[:MOST]
        left_out = len(names) - len(self._names)
        self._remark.setText(
            self.tr("The first {count} of {all} are plotted").format(count=MOST, all=len(names)) if left_out else ""
        )
        self._make_curves()
        self._shows_all = True
        self.refresh()

    def refresh(self) -> None:
        """Adds new samples. A hidden widget is updated when it is shown again."""
        if not self.isVisible():
            self._is_old = True
            return
        self._is_old = False
        self._offer_metrics()
        self._say_nothing()
        if self._grid.isVisibleTo(self):
            self._draw()

    def show_all(self) -> None:
        """Resets the zoom, so that the whole run is visible."""
        self._shows_all = True
        self._drawn.clear()
        self._draw()

    @property
    def time_range(self) -> tuple[float, float]:
        """The visible time range in seconds since 1970."""
        low, high = self._time_view.viewRange()[0]
        return low, high

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._is_old:
            self.refresh()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handles zoom and arrow keys before pyqtgraph receives them."""
        if event.type() != QEvent.Type.KeyPress or not isinstance(event, QKeyEvent):
            return super().eventFilter(watched, event)
        low, high = self.time_range
        middle, half = (low + high) / 2, (high - low) / 2
        key = Qt.Key(event.key())
        if key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal):
            self._go(middle - half / ZOOM, middle + half / ZOOM)
        elif key == Qt.Key.Key_Minus:
            self._go(middle - half * ZOOM, middle + half * ZOOM)
        elif key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            by = 2 * half * PAN * (1 if key == Qt.Key.Key_Right else -1)
            self._go(low + by, high + by)
        elif key in (Qt.Key.Key_0, Qt.Key.Key_Home):
            self.show_all()
        else:
            return False
        return True

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._drawn.clear()
        self._settle.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._settle.stop()

    def curve(self, kind: str, name: str) -> pg.PlotCurveItem:
        """Returns the curve of a replica in the plot of the given kind."""
        return self._curves[kind][self._names.index(name)]

    @property
    def _time_view(self) -> pg.ViewBox:
        return self._plots[self._shown[0]].getPlotItem().getViewBox()

    def _plot(self, title: str, unit: str) -> pg.PlotWidget:
        plot = pg.PlotWidget(self, axisItems={"bottom": pg.DateAxisItem()})
        item = plot.getPlotItem()
        item.setMenuEnabled(False)
        item.hideButtons()
        item.showGrid(x=False, y=True, alpha=0.12)
        item.setTitle(title + (f" ({unit})" if unit else ""), justify="left")
        item.titleLabel.item.setPos(0, 0)
        item.getAxis("left").setWidth(52)
        item.getAxis("left").enableAutoSIPrefix(False)
        plot.setProperty("card", True)
        plot.setAccessibleName(title)
        plot.setToolTip(self.tr("+ and - zoom, arrows move, 0 shows all"))
        plot.setFrameShape(plot.Shape.NoFrame)
        plot.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        plot.installEventFilter(self)
        view = item.getViewBox()
        view.disableAutoRange()
        view.setMouseEnabled(x=True, y=False)
        plot.scene().sigMouseClicked.connect(lambda event: self.show_all() if event.double() else None)
        return plot

    def _say_nothing(self) -> None:
        """Shows a sentence that explains why there is no curve."""
        tracks = self._feed.picture.tracks if self._feed else {}
        has_curves = any(len(tracks[name].ring) > 1 for name in self._names if name in tracks)
        if not has_curves:
            is_over = self._feed is not None and self._feed.picture.is_over
            self.nothing.set_texts(
                self.tr("No curves of this run") if is_over else self.tr("No curves yet"),
                self.tr("It is over, and its history was not kept. The table has the last values that are known.")
                if is_over
                else self.tr("They begin with the first samples of the chosen replicas."),
            )
        self._grid.setVisible(has_curves)
        self.nothing.setVisible(not has_curves)

    def _moved_by_hand(self) -> None:
        self._shows_all = False
        self._drawn.clear()
        self._settle.start()

    def _go(self, begin: float, end: float) -> None:
        self._shows_all = False
        self._time_view.setXRange(begin, end, padding=0)
        self._drawn.clear()
        self._draw()

    def _draw(self) -> None:
        if self._feed is None:
            return
        all_tracks = self._feed.picture.tracks
        tracks = [all_tracks.get(name) for name in self._names]
        if self._shows_all:
            self._fit_time([track for track in tracks if track is not None and len(track.ring)])
        begin, end = self.time_range
        newest = [(track.ring.last_time, len(track.ring)) if track else (None, 0) for track in tracks]
        before = self._drawn if len(self._drawn) == len(newest) else [None] * len(newest)
        self._drawn = newest
        most = max(100, int(self._time_view.width()))
        for kind in self._shown:
            field = OWN + self.reported.currentText() if kind == OWN_PLOT else kind
            curves = self._curves[kind]
            seen: list[Values] = []
            for number, (curve, track) in enumerate(zip(curves, tracks, strict=True)):
                if track is None:
                    continue
                if before[number] != newest[number]:
                    times, values = extremes(track.ring.times(), _values(field, track), begin, end, most)
                    gaps = bool(np.isnan(values).any())
                    curve.setData(times, values, connect="finite" if gaps else "all", skipFiniteCheck=True)
                seen.append(curve.yData)
            self._fit_values(kind, seen, any(track.gpus for track in tracks if track))

    def _fit_time(self, tracks: list[ReplicaStatus]) -> None:
        """Fits the time axis to the data. Its end is rounded, because a change every second would redraw everything."""
        if not tracks:
            return
        low = min(float(track.ring.times()[0]) for track in tracks)
        high = max(float(track.ring.times()[-1]) for track in tracks)
        step = 10.0 if high - low < 600 else 60.0
        low, high = low // step * step, -(-high // step) * step
        high = max(high, low + LEAST_SPAN_S)
        if self.time_range != (low, high):
            self._drawn.clear()
            self._time_view.setXRange(low, high, padding=0)

    def _fit_values(self, kind: str, seen: list[Values], has_gpus: bool) -> None:
        view = self._plots[kind].getPlotItem().getViewBox()
        if kind == "use" and has_gpus:  # The load of CPUs may exceed 100 %, so that it has no fixed range.
            wanted = (0.0, 100.0)
        elif (found := bounds([values for values in seen if values is not None])) is None:
            return
        elif kind in ("loss", OWN_PLOT):
            wanted = calmed(*found)
        else:
            wanted = (min(0.0, found[0]), found[1])  # Amounts are comparable only if their axes start at zero.
        low, high = wanted
        low_now, high_now = view.viewRange()[1]
        room = (high - low) or abs(high) or 1.0
        # The range is kept while the data fits into it and fills enough of it.
        if low_now <= low and high <= high_now and high_now - low_now < 1.4 * room:
            return
        view.setYRange(low - 0.06 * room if kind in ("loss", OWN_PLOT) else low, high + 0.06 * room, padding=0)

    def _make_curves(self) -> None:
        self._drawn.clear()
        for kind, plot in self._plots.items():
            item = plot.getPlotItem()
            for curve in self._curves[kind]:
                item.removeItem(curve)
            self._curves[kind] = [pg.PlotCurveItem(pen=curve_pen(number)) for number in range(len(self._names))]
            for curve in self._curves[kind]:
                item.addItem(curve, ignoreBounds=True)
        clear_layout(self._legend)
        for number, name in enumerate(self._names):
            self._legend.addWidget(PlotKey(name, number), number // KEYS_ACROSS, number % KEYS_ACROSS)

    def _apply_theme(self) -> None:
        look = theme()
        for plot in self._plots.values():
            plot.setBackground(look.color("s2"))
            item = plot.getPlotItem()
            for side in ("left", "bottom"):
                axis = item.getAxis(side)
                axis.setPen(look.pen("hair"))
                axis.setTextPen(look.pen("text2"))
                axis.setStyle(tickFont=look.font("tiny"), tickLength=-4)
            item.setTitle(item.titleLabel.text, color=look.tokens.text2, size="12px", justify="left")
        for curves in self._curves.values():
            for number, curve in enumerate(curves):
                curve.setPen(curve_pen(number))


def _values(kind: str, track: ReplicaStatus) -> Values:
    ring = track.ring
    if kind == "use":
        return ring.values("gpu" if track.gpus else "cpu")
    if kind == "memory":
        return ring.values("gpu_memory_mb" if track.gpus else "memory_mb") / np.float32(1024)
    return ring.values(kind)


COLOURS = ("worker", "chief", "reducer", "evaluator", "ps", "accent", "run", "text2")
"""Colours of the curves in turn; the second eight are dashed."""


def curve_pen(number: int) -> QPen:
    """Returns a pen of width 1, because wider pens take seconds per frame."""
    pen = QPen(theme().pen(COLOURS[number % len(COLOURS)]))
    pen.setCosmetic(True)
    if number >= len(COLOURS):
        pen.setStyle(Qt.PenStyle.DashLine)
    return pen


class PlotKey(QWidget):
    """Entry of the legend: the line and the name of a curve."""

    def __init__(self, name: str, number: int):
        super().__init__()
        self._number = number
        hbox(label(name, role="small", ink="2"), parent=self, margins=(20, 0, 0, 0))
        theme().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pen = curve_pen(self._number)
        pen.setWidth(2)
        painter.setPen(pen)
        middle = self.height() // 2
        painter.drawLine(0, middle, 14, middle)
