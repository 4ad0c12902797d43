"""Curves of several runs over the step, or over the time since the start of each run. Each run has one curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QWidget

from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.replica_metrics import OWN
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.bridge.runs_model import FEEDS, RunsModel
from torchyard_gui.runs.labels import duration
from torchyard_gui.runs.plots.crosshair import Crosshair
from torchyard_gui.runs.plots.downsampling import Times, Values, bounds, calmed, extremes
from torchyard_gui.runs.plots.plot_widgets import (
    PlotKey,
    SharedAxis,
    amount,
    curve_pen,
    make_plot,
    name_plot,
    style_plot,
)
from torchyard_gui.runs.run_titles import title_of
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import EmptyState, Segmented, clear_layout, label
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.layouts import hbox, vbox

MOST_RUNS = FEEDS
"""Maximum number of compared runs, which is also the number of feeds that the model keeps open."""
EVERY_MS = 500
"""Minimum interval in milliseconds between two updates of live runs' curves."""
KINDS = ("loss", "throughput")
MOST_OWN = 2
"""Maximum number of plots for metrics that scripts define."""
CROSSHAIR_STEP = 0.01


class Comparison(QWidget):
    """Compares at most MOST_RUNS runs by plots of their loss, their throughput, and some metrics that the scripts
    define.
    """

    closed = Signal()

    def __init__(self, model: RunsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._feeds: list[RunFeed] = []
        self._kinds: list[str] = []
        self._curves: dict[str, list[pg.PlotCurveItem]] = {}
        self._soon = QTimer(self, singleShot=True, interval=EVERY_MS)
        self._soon.timeout.connect(self.refresh)
        self._legend = QGridLayout()
        self._legend.setHorizontalSpacing(14)
        self._legend.setVerticalSpacing(2)
        self._remark = label(role="small", ink="2", wrap=True)
        self.axis = Segmented([("step", self.tr("By step")), ("time", self.tr("By time"))])
        self.axis.setAccessibleName(self.tr("Horizontal axis"))
        self.axis.changed.connect(lambda _: self.refresh())
        close = tool_button("close", self.tr("Show one run (Esc)"), self.closed)
        slots = [*KINDS, *(f"{OWN}{number}" for number in range(MOST_OWN))]
        self.plots = {slot: make_plot("", "", parent=self) for slot in slots}
        """Plots by slot; the last ones show metrics that scripts define."""
        self._shared = SharedAxis(self.plots.values(), self)
        self._grid = QGridLayout()
        self._grid.setSpacing(12)
        for plot in self.plots.values():
            plot.setToolTip(self.tr("The wheel zooms, arrows move the crosshair"))
            plot.installEventFilter(self)
        self.crosshair = Crosshair(self.plots, self._values_at, self._position_text, self)
        around = QWidget()
        around.setLayout(self._grid)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._around = around
        self.nothing = EmptyState(
            self.tr("No curves to compare"),
            self.tr("The hosts of these runs have not sent their history, or the scripts reported nothing."),
            icon_name="chart",
        )
        head = hbox(self.axis, None, close)
        vbox(
            head,
            hbox(self._legend, None),
            self._remark,
            (around, 1),
            (self.nothing, 1),
            parent=self,
            margins=(16, 12, 16, 12),
            spacing=10,
        )
        theme().changed.connect(self._apply_theme)
        self._apply_theme()

    def show_runs(self, runs: Sequence[KnownRun]) -> None:
        """Compares these runs, at most MOST_RUNS of them. An empty sequence removes the previous runs."""
        kept = list(runs)[:MOST_RUNS]
        if [feed.run.run_id for feed in self._feeds] == [run.run_id for run in kept]:
            return
        for feed in self._feeds:
            feed.changed.disconnect(self._changed)
        self._feeds = [self._model.feed(run) for run in kept]
        for feed in self._feeds:
            feed.changed.connect(self._changed)
        left_out = len(runs) - len(kept)
        text = self.tr("The first {count} of {all} selected runs are compared.")
        self._remark.setText(text.format(count=MOST_RUNS, all=len(runs)) if left_out else "")
        self._remark.setVisible(bool(left_out))
        clear_layout(self._legend)
        for number, run in enumerate(kept):
            self._legend.addWidget(PlotKey(title_of(run, self._model.runs), number), number // 3, number % 3)
        self._make_curves()
        self.refresh()

    def refresh(self) -> None:
        """Draws the curves again if the widget is visible."""
        self._soon.stop()
        if not self.isVisible() or not self._feeds:
            return
        own = list(dict.fromkeys(name for feed in self._feeds for name in own_metrics(feed.picture)))[:MOST_OWN]
        fields = dict(zip(self.plots, [*KINDS, *(OWN + name for name in own)], strict=False))
        series = {slot: [self._series(feed.picture, field) for feed in self._feeds] for slot, field in fields.items()}
        drawn = {slot: found for slot, found in series.items() if any(len(xs) > 1 for xs, _ in found)}
        self._around.setVisible(bool(drawn))
        self.nothing.setVisible(not drawn)
        self._arrange(list(drawn))
        names = {"loss": self.tr("Loss"), "throughput": self.tr("Samples/s, last 10 s")}
        every = [xs for found in drawn.values() for xs, _ in found if len(xs)]
        if every:
            low, high = min(float(xs[0]) for xs in every), max(float(xs[-1]) for xs in every)
            self._shared.set_range(low, max(high, low + 1))
        for slot, found in drawn.items():
            name_plot(self.plots[slot], names.get(slot) or fields[slot].removeprefix(OWN))
            self._draw(slot, found)
        self.crosshair.refresh()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handles the keys for the crosshair before pyqtgraph receives them."""
        if event.type() != QEvent.Type.KeyPress or not isinstance(event, QKeyEvent):
            return super().eventFilter(watched, event)
        steps = {Qt.Key.Key_Left: -CROSSHAIR_STEP, Qt.Key.Key_Right: CROSSHAIR_STEP}
        key = Qt.Key(event.key())
        if key in steps:
            self.crosshair.move_by(steps[key])
            return True
        return False

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
            return
        super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._soon.stop()
        self.crosshair.stop()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.isVisible():
            self._soon.start()

    def curve(self, kind: str, number: int) -> pg.PlotCurveItem:
        """Returns the curve of the run with this number in the plot of the given kind."""
        return self._curves[kind][number]

    def _changed(self) -> None:
        if self.isVisible() and not self._soon.isActive():
            self._soon.start()

    def _series(self, picture: RunState, field: str) -> tuple[Times, Values]:
        return by_step(picture, field) if self.axis.value == "step" else by_time(picture, field)

    def _arrange(self, slots: list[str]) -> None:
        """Lays out the plots that have curves, in two columns."""
        if slots == self._kinds:
            return
        self._kinds = slots
        for plot in self.plots.values():
            self._grid.removeWidget(plot)
            plot.hide()
        for number, slot in enumerate(slots):
            is_alone = number == len(slots) - 1 and number % 2 == 0
            self._grid.addWidget(self.plots[slot], number // 2, number % 2, 1, 2 if is_alone else 1)
            self.plots[slot].show()
        for row in range(len(self.plots)):
            self._grid.setRowStretch(row, 1 if row < (len(slots) + 1) // 2 else 0)

    def _make_curves(self) -> None:
        for slot, plot in self.plots.items():
            item = plot.getPlotItem()
            for curve in self._curves.get(slot, []):
                item.removeItem(curve)
            self._curves[slot] = [pg.PlotCurveItem(pen=curve_pen(number)) for number in range(len(self._feeds))]
            for curve in self._curves[slot]:
                item.addItem(curve, ignoreBounds=True)

    def _draw(self, slot: str, found: list[tuple[Times, Values]]) -> None:
        view = self.plots[slot].getPlotItem().getViewBox()
        most = max(100, int(view.width()))
        shown = []
        for curve, (xs, ys) in zip(self._curves[slot], found, strict=True):
            if len(xs):
                xs, ys = extremes(xs, ys, float(xs[0]), float(xs[-1]), most)
            gaps = bool(np.isnan(ys).any())
            curve.setData(xs, ys, connect="finite" if gaps else "all", skipFiniteCheck=True)
            shown.append(ys)
        ends = bounds(shown)
        if ends is not None:
            low, high = calmed(*ends) if slot != "throughput" else (min(0.0, ends[0]), ends[1])
            room = (high - low) or abs(high) or 1.0
            view.setYRange(low - (0.06 * room if slot != "throughput" else 0), high + 0.06 * room, padding=0)

    def _values_at(self, slot: str, at: float) -> list[tuple[str, QPen]]:
        found = []
        for number, curve in enumerate(self._curves[slot]):
            xs, ys = curve.getData()
            if xs is None or not len(xs) or not xs[0] <= at <= xs[-1]:
                continue
            value = float(ys[min(int(np.searchsorted(xs, at)), len(xs) - 1)])
            if not np.isnan(value):
                found.append((amount(value), curve_pen(number)))
        return found

    def _position_text(self, at: float) -> str:
        return self.tr("step {step}").format(step=f"{at:,.0f}") if self.axis.value == "step" else duration(at)

    def _apply_theme(self) -> None:
        for slot, plot in self.plots.items():
            style_plot(plot)
            for number, curve in enumerate(self._curves.get(slot, [])):
                curve.setPen(curve_pen(number))


def own_metrics(picture: RunState) -> list[str]:
    """Returns the names of the metrics defined by the chief's script."""
    chief = picture.tracks.get(picture.chief or "")
    return chief.ring.own if chief is not None else []


def by_time(picture: RunState, field: str) -> tuple[Times, Values]:
    """Returns the values of a metric of a run over the seconds since the start of the run."""
    times, _, values = _samples(picture, field)
    begin = picture.started or picture.submitted or (float(times[0]) if len(times) else 0.0)
    known = ~np.isnan(values)
    return (times - begin)[known], values[known]


def by_step(picture: RunState, field: str) -> tuple[Times, Values]:
    """Returns the values of a metric of a run over its steps. If a step was repeated after a restart, only the last
    value is included.
    """
    _, steps, values = _samples(picture, field)
    known = ~np.isnan(steps) & ~np.isnan(values)
    steps, values = steps[known], values[known]
    if not len(steps):
        return steps, values
    later = np.minimum.accumulate(steps[::-1])[::-1]
    kept = np.append(steps[:-1] < later[1:], True)
    return steps[kept], values[kept]


def _samples(picture: RunState, field: str) -> tuple[Times, Times, Values]:
    """Returns (times, steps, values) of the whole run or, for a metric defined by its script, of the chief."""
    series = picture.totals
    if field.startswith(OWN):
        chief = picture.tracks.get(picture.chief or "")
        if chief is None:
            return np.empty(0), np.empty(0), np.empty(0, np.float32)
        series = chief.ring
    return series.times(), series.values("step").astype(np.float64), series.values(field)
