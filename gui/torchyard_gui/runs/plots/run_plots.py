"""Plots of the selected replicas over time: training metrics, the parts of steps, or custom metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, QTimer
from PySide6.QtGui import QHideEvent, QKeyEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QGridLayout, QWidget

from torchyard_core.replica_metrics import OWN
from torchyard_gui.bridge.metric_labels import name_of
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state_types import ReplicaStatus
from torchyard_gui.runs.labels import clock, duration
from torchyard_gui.runs.plots.crosshair import MOST_VALUES, Crosshair
from torchyard_gui.runs.plots.downsampling import Values, bounds, calmed, extremes
from torchyard_gui.runs.plots.plot_widgets import (
    PlotKey,
    SharedAxis,
    amount,
    curve_pen,
    make_plot,
    name_plot,
    style_plot,
)
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import EmptyState, Segmented, clear_layout, label
from torchyard_gui.widgets.layouts import hbox, vbox

STEP_PLOTS = ("compute_s", "exchange_s", "wait_s", "staleness")
OWN_PLOT = "own"
"""The plot for metrics that the script defines. It shows one metric at a time."""
CHOICES = {"progress": ("throughput", "loss", "use", "memory"), "step": STEP_PLOTS, "own": (OWN_PLOT,)}
"""The plots that are shown together on one time axis, by the user's choice."""
MOST = 16
"""Maximum number of curves, because more could not be distinguished."""
KEYS_ACROSS = 6
LEAST_SPAN_S = 60.0
"""Minimum range of the time axis in seconds, so that the few samples of a new run are not stretched over the whole
plot.
"""
WHOLE_RUN = math.inf
SPANS = (300.0, 1800.0, 7200.0)
"""Ranges of the time axis, in seconds, from which the user can choose."""
MOST_DISTANCE = 0.02
"""Maximum distance of a sample from the crosshair, as a fraction of the time axis."""
CROSSHAIR_STEP = 0.01
"""Fraction of the time axis by which a key moves the crosshair."""
ZOOM = 1.5
PAN = 0.2
AFTER_ZOOM_MS = 30
"""Delay in milliseconds after a zoom before the curves are adapted to the new resolution."""


class Plots(QWidget):
    """Up to four plots over a common time axis.

    The wheel, + and - zoom; drags and the arrow keys move the visible range; 0 shows the whole run. The limits of the
    axes change in steps, and curves are downsampled to the visible resolution. The corresponding methods of pyqtgraph
    take twice as long for 16 curves of an hour.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._feed: RunFeed | None = None
        self._names: list[str] = []
        self._is_old = False
        self._span: float | None = WHOLE_RUN
        """The number of seconds up to the newest sample that the time axis covers. WHOLE_RUN covers the whole run; None
        stands for a range to which the user has zoomed.
        """
        self._settle = QTimer(self, singleShot=True, interval=AFTER_ZOOM_MS)
        self._settle.timeout.connect(self._draw)
        self._legend = QGridLayout()
        self._legend.setHorizontalSpacing(14)
        self._legend.setVerticalSpacing(2)
        self._remark = label(role="small", ink="2")
        self._plots = {
            "throughput": self._plot(self.tr("Samples/s, last 10 s"), ""),
            "loss": self._plot(self.tr("Loss"), ""),
            "use": self._plot(self.tr("Use"), "%"),
            "memory": self._plot(self.tr("Memory"), "GB"),
            "compute_s": self._plot(name_of("compute_s"), self.tr("s per step")),
            "exchange_s": self._plot(name_of("exchange_s"), self.tr("s per step")),
            "wait_s": self._plot(name_of("wait_s"), self.tr("s per step")),
            "staleness": self._plot(name_of("staleness"), self.tr("versions")),
            OWN_PLOT: self._plot(self.tr("Reported"), ""),
        }
        self.choice = Segmented(
            [("progress", self.tr("Progress")), ("step", self.tr("Step")), ("own", self.tr("Reported"))]
        )
        self.choice.setAccessibleName(self.tr("Plotted values"))
        self.choice.button("progress").setToolTip(self.tr("Throughput, loss, use and memory"))
        self.choice.button("step").setToolTip(self.tr("Parts of a step: compute, exchange, waiting, staleness"))
        self.choice.button("own").setToolTip(self.tr("Custom metrics of the script"))
        self.choice.button("own").setEnabled(False)
        self.choice.changed.connect(self._choose)
        self.reported = QComboBox()
        self.reported.setAccessibleName(self.tr("Reported number"))
        self.reported.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.reported.setVisible(False)
        self.reported.currentTextChanged.connect(self._show_metric)
        self._curves: dict[str, list[pg.PlotCurveItem]] = {kind: [] for kind in self._plots}
        self._arranged: list[str] = []
        """Kinds of the plots in the layout."""
        self._drawn: list[tuple[float | None, int]] = []
        """Time of the newest drawn sample and number of drawn samples, for each replica."""
        self._shared = SharedAxis(self._plots.values(), self)
        for plot in self._plots.values():
            plot.getPlotItem().getViewBox().sigRangeChangedManually.connect(self._moved_by_hand)
        grid = QGridLayout()
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(12)
        self._grid = QWidget()
        self._grid.setLayout(grid)
        self._layout = grid
        self.crosshair = Crosshair(self._plots, self._values_at, lambda at: clock(at, exact=True), self)
        self.range = QComboBox()
        self.range.setAccessibleName(self.tr("Time range"))
        self.range.setToolTip(self.tr("How much of the run the plots show"))
        self.range.addItem(self.tr("Whole run"), WHOLE_RUN)
        for span in SPANS:
            self.range.addItem(self.tr("Last {time}").format(time=duration(span)), span)
        self.range.addItem(self.tr("Zoomed"), None)
        self.range.activated.connect(self._range_chosen)
        self.nothing = EmptyState(self.tr("No curves of this run"), "", icon_name="chart")
        head = hbox(self.choice, self.reported, None, self.range)
        legend = hbox(self._legend, None)
        legend.addWidget(self._remark, 0, Qt.AlignmentFlag.AlignTop)
        vbox(head, legend, (self._grid, 1), (self.nothing, 1), parent=self, margins=(16, 12, 16, 12), spacing=10)
        theme().changed.connect(self._apply_theme)
        self._apply_theme()
        self._arrange()
        self._say_nothing()

    def _choose(self, choice: str) -> None:
        self._arrange()
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
        name_plot(plot, title)
        plot.getPlotItem().getViewBox().setYRange(0, 1, padding=0)

    def _offer_metrics(self) -> None:
        """Offers the custom metrics of the selected replicas. The current choice is kept if it is still offered."""
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
        """The kinds of the chosen plots that have values or, if none has values, of all chosen plots.

        A plot may have no values, because not every strategy has all parts of a step.
        """
        kinds = CHOICES[self.choice.value]
        if self.choice.value == "own" or self._feed is None:
            return list(kinds)
        tracks = [track for name in self._names if (track := self._feed.picture.tracks.get(name)) is not None]
        known = [kind for kind in kinds if any(track.ring.last(_field(kind, track)) is not None for track in tracks)]
        return known or list(kinds)

    def _arrange(self) -> None:
        """Lays out the visible plots in two columns. If their number is odd, the last plot spans both columns."""
        shown = self._shown
        if shown == self._arranged:
            return
        self._arranged = shown
        for plot in self._plots.values():
            self._layout.removeWidget(plot)
            plot.hide()
        for number, kind in enumerate(shown):
            is_alone = number == len(shown) - 1 and number % 2 == 0
            self._layout.addWidget(self._plots[kind], number // 2, number % 2, 1, 2 if is_alone else 1)
            self._plots[kind].show()
        for row in range(2):
            self._layout.setRowStretch(row, 1 if row < (len(shown) + 1) // 2 else 0)
        self._drawn.clear()

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
        self.refresh()

    def refresh(self) -> None:
        """Draws new samples. If the widget is hidden, it is updated when it is shown again."""
        if not self.isVisible():
            self._is_old = True
            return
        self._is_old = False
        self._offer_metrics()
        self._arrange()
        self._say_nothing()
        if self._grid.isVisibleTo(self):
            self._draw()

    def show_all(self) -> None:
        """Shows the whole run."""
        self.show_span(WHOLE_RUN)

    def show_span(self, span: float | None) -> None:
        """Shows the last `span` seconds and follows new samples; None keeps the visible range."""
        self._span = span
        self.range.setCurrentIndex(self.range.findData(span))
        self._drawn.clear()
        self._draw()

    def _range_chosen(self) -> None:
        self.show_span(self.range.currentData())

    @property
    def time_range(self) -> tuple[float, float]:
        """The visible time range in seconds since 1970."""
        return self._shared.range

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._is_old:
            self.refresh()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handles the keys for zoom, range and crosshair before pyqtgraph receives them."""
        if event.type() != QEvent.Type.KeyPress or not isinstance(event, QKeyEvent):
            return super().eventFilter(watched, event)
        low, high = self.time_range
        middle, half = (low + high) / 2, (high - low) / 2
        key = Qt.Key(event.key())
        if key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal):
            self._go(middle - half / ZOOM, middle + half / ZOOM)
        elif key == Qt.Key.Key_Minus:
            self._go(middle - half * ZOOM, middle + half * ZOOM)
        elif key in (Qt.Key.Key_Left, Qt.Key.Key_Right) and event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.crosshair.move_by(CROSSHAIR_STEP if key == Qt.Key.Key_Right else -CROSSHAIR_STEP)
        elif key == Qt.Key.Key_Escape and self.crosshair.position is not None:
            self.crosshair.move_to(None)
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
        self.crosshair.stop()

    def curve(self, kind: str, name: str) -> pg.PlotCurveItem:
        """Returns the curve of a replica in the plot of the given kind."""
        return self._curves[kind][self._names.index(name)]

    def _plot(self, title: str, unit: str) -> pg.PlotWidget:
        plot = make_plot(title, unit, pg.DateAxisItem(), self)
        plot.setToolTip(self.tr("+ and - zoom, arrows move, 0 shows all, Shift+arrows move the crosshair"))
        plot.installEventFilter(self)
        plot.scene().sigMouseClicked.connect(lambda event: self.show_all() if event.double() else None)
        return plot

    def _say_nothing(self) -> None:
        """Shows the plots or, if there are no curves, a sentence that says why."""
        tracks = self._feed.picture.tracks if self._feed else {}
        has_curves = any(len(tracks[name].ring) > 1 for name in self._names if name in tracks)
        if not has_curves:
            is_over = self._feed is not None and self._feed.picture.is_over
            self.nothing.set_texts(
                self.tr("No curves of this run") if is_over else self.tr("No curves yet"),
                self.tr("The run has ended, and its history was not kept. The table shows the last known values.")
                if is_over
                else self.tr("Curves appear with the first samples of the selected replicas."),
            )
        self._grid.setVisible(has_curves)
        self.nothing.setVisible(not has_curves)

    def _moved_by_hand(self) -> None:
        self._span = None
        self.range.setCurrentIndex(self.range.findData(None))
        self._drawn.clear()
        self._settle.start()

    def _go(self, begin: float, end: float) -> None:
        self._shared.set_range(begin, end)
        self.show_span(None)

    def _draw(self) -> None:
        if self._feed is None:
            return
        all_tracks = self._feed.picture.tracks
        tracks = [all_tracks.get(name) for name in self._names]
        if self._span is not None:
            self._fit_time([track for track in tracks if track is not None and len(track.ring)])
        begin, end = self.time_range
        newest = [(track.ring.last_time, len(track.ring)) if track else (None, 0) for track in tracks]
        before = self._drawn if len(self._drawn) == len(newest) else [None] * len(newest)
        self._drawn = newest
        most = max(100, int(self._plots[self._shown[0]].getPlotItem().getViewBox().width()))
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
        self.crosshair.refresh()

    def _fit_time(self, tracks: list[ReplicaStatus]) -> None:
        """Fits the time axis to the data. The limits are rounded, because changing them every second would redraw all
        plots.
        """
        if not tracks:
            return
        low = min(float(track.ring.times()[0]) for track in tracks)
        high = max(float(track.ring.times()[-1]) for track in tracks)
        step = 10.0 if high - low < 600 else 60.0
        low, high = low // step * step, -(-high // step) * step
        high = max(high, low + LEAST_SPAN_S)
        assert self._span is not None
        low = max(low, high - self._span)
        if self.time_range != (low, high):
            self._drawn.clear()
            self._shared.set_range(low, high)

    def _fit_values(self, kind: str, seen: list[Values], has_gpus: bool) -> None:
        view = self._plots[kind].getPlotItem().getViewBox()
        if kind == "use" and has_gpus:  # CPU use may exceed 100 %, so only GPUs have a fixed range.
            wanted = (0.0, 100.0)
        elif (found := bounds([values for values in seen if values is not None])) is None:
            return
        elif kind in ("loss", OWN_PLOT):
            wanted = calmed(*found)
        else:
            wanted = (min(0.0, found[0]), found[1])  # Amounts can be compared only if their axes begin at zero.
        low, high = wanted
        low_now, high_now = view.viewRange()[1]
        room = (high - low) or abs(high) or 1.0
        # The visible range is kept as long as it contains the data and the data fill enough of it.
        if low_now <= low and high <= high_now and high_now - low_now < 1.4 * room:
            return
        view.setYRange(low - 0.06 * room if kind in ("loss", OWN_PLOT) else low, high + 0.06 * room, padding=0)

    def _values_at(self, kind: str, at: float) -> list[tuple[str, QPen]]:
        """Returns the values of a plot's curves at a time.

        If more than MOST_VALUES curves have a value, returns a single text with the range of the values.
        """
        found: list[tuple[float, QPen]] = []
        for number, curve in enumerate(self._curves[kind]):
            times, values = curve.getData()
            if times is None or not len(times):
                continue
            place = min(int(np.searchsorted(times, at)), len(times) - 1)
            if place and at - times[place - 1] < times[place] - at:
                place -= 1
            if abs(times[place] - at) <= MOST_DISTANCE * max(self.time_range[1] - self.time_range[0], LEAST_SPAN_S):
                found.append((float(values[place]), curve_pen(number)))
        known = [(value, pen) for value, pen in found if not math.isnan(value)]
        if len(known) > MOST_VALUES:
            ends = min(value for value, _ in known), max(value for value, _ in known)
            return [(f"{amount(ends[0])} – {amount(ends[1])}", theme().pen("text"))]
        return [(amount(value), pen) for value, pen in known]

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
        for plot in self._plots.values():
            style_plot(plot)
        for curves in self._curves.values():
            for number, curve in enumerate(curves):
                curve.setPen(curve_pen(number))


def _values(kind: str, track: ReplicaStatus) -> Values:
    ring = track.ring
    values = ring.values(_field(kind, track))
    return values / np.float32(1024) if kind == "memory" else values


def _field(kind: str, track: ReplicaStatus) -> str:
    """Returns the name of the metric in a plot. For use and memory, it depends on whether the replica has GPUs."""
    if kind == "use":
        return "gpu" if track.gpus else "cpu"
    if kind == "memory":
        return "gpu_memory_mb" if track.gpus else "memory_mb"
    return kind
