"""The panel beside a run, with alerts, small plots, a timeline and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import QRect, Qt, Signal
from PySide6.QtWidgets import QGridLayout, QWidget

from torchyard_gui.bridge.metric_labels import IF_REPORTED, WRITTEN, name_of, sentence_of, written
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state import OF_TRAINERS, SUMS
from torchyard_gui.bridge.run_state_types import ReplicaStatus, RunChanges
from torchyard_gui.runs.alerts import AlertsPanel, alerts_of
from torchyard_gui.runs.labels import loss, memory, percent, rate
from torchyard_gui.runs.notes import NotesSection
from torchyard_gui.runs.plots.mini_plot import MiniPlot
from torchyard_gui.runs.timeline import Timeline
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import SectionLabel, label, scroll_area
from torchyard_gui.widgets.layouts import FLUSH, vbox

if TYPE_CHECKING:
    from torchyard_core.advisor.run_comparison import StepTimes

SHOWN = 600
"""Number of samples in the small plots: ten minutes at one sample per second."""
PREDICTED = ("compute_s", "exchange_s", "wait_s")
"""Parts of a step that the advisor predicts."""
REPORTED = (*OF_TRAINERS, "bytes_s")
"""Metrics that the journal contains. All other metrics are recorded only while this desktop follows the run."""


class SidePanel(QWidget):
    """A panel whose small plots show totals of the run or, if a single replica is selected, the replica's values."""

    opened = Signal(str)
    """Emitted with the name of a replica whose log should be shown."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setMinimumWidth(theme().metrics.inspector - 48)
        self._feed: RunFeed | None = None
        self._replica = ""
        self.needs = AlertsPanel()
        self.plots = {
            "throughput": MiniPlot(
                self.tr("Throughput"),
                "run",
                explanation=self.tr("Samples per second of finished steps, mean of the last 10 s"),
            ),
            "loss": MiniPlot(self.tr("Loss"), "accent"),
            "traffic": MiniPlot(self.tr("Traffic"), "run"),
            "use": MiniPlot(self.tr("GPU use"), "meter"),
            "memory": MiniPlot(self.tr("Memory"), "text3"),
        }
        self.step = StepParts()
        self.timeline = Timeline()
        self.notes = NotesSection()
        self.needs.opened.connect(self.opened)
        self.timeline.opened.connect(self.opened)
        inside = QWidget()
        events = SectionLabel(self.tr("Events")), self.timeline
        parts = self.needs, *self.plots.values(), self.step, 6, *events, 6, self.notes, None
        vbox(*parts, parent=inside, margins=(16, 14, 16, 16), spacing=10)
        self._area, self._inside = scroll_area(inside), inside
        self.timeline.row_entered.connect(self._show_row)
        vbox(self._area, parent=self, margins=FLUSH)

    def set_feed(self, feed: RunFeed | None) -> None:
        self._feed, self._replica = feed, ""
        self.refresh()

    def set_chosen(self, names: Sequence[str]) -> None:
        """Sets the selected replicas. If there is a single one, the small plots show that replica's values."""
        self._replica = names[0] if len(names) == 1 else ""
        self._show_plots()

    def take(self, changes: RunChanges) -> None:
        if changes.run or changes.replicas:
            self._show_needs()
        if changes.moments and self._feed is not None:
            self.timeline.show_moments(self._feed.picture.moments)
        if changes.samples or changes.run:
            self._show_plots()

    def refresh(self) -> None:
        self._show_needs(is_known=True)
        self._show_plots()
        self.timeline.show_moments(self._feed.picture.moments if self._feed else [])

    def _show_row(self, row: QRect) -> None:
        """Scrolls to a line of the timeline."""
        middle = self.timeline.mapTo(self._inside, row.center())
        self._area.ensureVisible(middle.x(), middle.y(), 0, row.height())

    def _show_needs(self, *, is_known: bool = False) -> None:
        self.needs.show_needs(alerts_of(self._feed.picture) if self._feed else [], is_known=is_known)

    def _show_plots(self) -> None:
        """Updates the plots. After the run has ended, each value is labelled as the last one."""
        if self._feed is None:
            self.step.show_track(None)
        else:
            self.step.show_track(self._feed.picture.tracks.get(self._replica), self._feed.predicted_step(self._replica))
        if self._feed is None:
            for plot in self.plots.values():
                plot.set_values(np.empty(0, np.float32), "–")
            self.plots["traffic"].hide()
            return
        picture = self._feed.picture
        track = picture.tracks.get(self._replica)
        gpus = len(track.gpus) if track else sum(len(each.gpus) for each in picture.tracks.values())
        memory_kind = "gpu_memory_mb" if gpus else "memory_mb"
        serves = track is not None and track.serves
        for name in ("throughput", "loss", "traffic"):
            self.plots[name].setVisible(serves == (name == "traffic"))
        if serves:
            self._show("traffic", "bytes_s", lambda value: written("bytes_s", value), track, calm=True)
        else:
            trainers = picture.reported_by("throughput")[1]
            is_sum = trainers > 1 and not picture.is_over
            of_all = self.tr("{count} trainers").format(count=trainers) if is_sum else ""
            self._show("throughput", "throughput", self._rate, track, note=of_all, calm=True)
            self._show("loss", "loss", loss, track, calm=True)
        self.plots["use"].setVisible(gpus > 0)
        if gpus:
            count = self.tr("1 GPU") if gpus == 1 else self.tr("{count} GPUs").format(count=gpus)
            words = percent if track or gpus == 1 else self._median
            self._show("use", "gpu", words, track, note=count, fixed=(0.0, 100.0))
        self._show("memory", memory_kind, memory, track, calm=True)

    def _show(
        self,
        plot: str,
        kind: str,
        words: Callable[[float | None], str],
        track: ReplicaStatus | None,
        *,
        note: str = "",
        fixed: tuple[float, float] | None = None,
        calm: bool = False,
    ) -> None:
        assert self._feed is not None
        picture = self._feed.picture
        value = track.ring.last(kind) if track else picture.total(kind)
        is_over = picture.is_over or (track is not None and track.is_over)
        note = track.name if track else note
        if is_over and value is not None:
            note = ", ".join(filter(None, (note, self.tr("last"))))
        ring = track.ring if track else picture.totals
        sentence = self._sentence(kind, value, track, is_over)
        self.plots[plot].set_values(ring.tail(kind, SHOWN), words(value), note, fixed, calm=calm, sentence=sentence)

    def _sentence(self, kind: str, value: float | None, track: ReplicaStatus | None, is_over: bool) -> str:
        """Returns the sentence that a small plot shows if it has too few values for a line."""
        assert self._feed is not None
        if not is_over:
            if value is not None:
                return self.tr("One value so far")
            if kind in REPORTED:
                return self.tr("No reports yet")
            return self.tr("No measurements yet")
        if value is None:
            if kind in REPORTED:
                return self.tr("Not reported")
            return self.tr("Not recorded on this computer")
        reported, asked = self._feed.picture.reported_by(kind)
        if track is None and reported < asked and kind in SUMS:
            one = self.tr("From 0 of 1 replica; no history")
            several = self.tr("From {reported} of {asked} replicas; no history")
            return (one if asked == 1 else several).format(reported=reported, asked=asked)
        return self.tr("Only the last value was kept")

    def _rate(self, value: float | None) -> str:
        return "–" if value is None else self.tr("{rate} samples/s").format(rate=rate(value))

    def _median(self, value: float | None) -> str:
        return "–" if value is None else self.tr("median {use}").format(use=percent(value))


class StepParts(QWidget):
    """Widget that shows the parts of a step of one replica.

    The widget is hidden unless exactly one replica is selected, because sums over replicas would be meaningless.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.heading = SectionLabel()
        self.values = {field: label() for field in WRITTEN}
        self.predicted = {field: label(role="small", ink="2") for field in PREDICTED}
        self.names = {field: label(name_of(field), role="small", ink="2") for field in WRITTEN}
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 4, 0, 0)
        layout.setVerticalSpacing(4)
        layout.setHorizontalSpacing(10)
        layout.addWidget(self.heading, 0, 0, 1, 3)
        for row, (field, value) in enumerate(self.values.items(), 1):
            value.setAccessibleName(name_of(field))
            layout.addWidget(self.names[field], row, 0)
            layout.addWidget(value, row, 2, Qt.AlignmentFlag.AlignRight)
            if field in self.predicted:
                self.predicted[field].setToolTip(
                    self.tr("From the profile of the script, without corrections by past runs")
                    if field == "compute_s"
                    else self.tr("From the profile of the script. Compare the sum of exchange and waiting")
                )
                layout.addWidget(self.predicted[field], row, 1, Qt.AlignmentFlag.AlignRight)
        layout.setColumnStretch(0, 1)
        self.hide()

    def show_track(self, track: ReplicaStatus | None, predicted: StepTimes | None = None) -> None:
        """Shows the values of a replica, with their predictions if there are any.

        Shows nothing if the replica is None or has not reported yet.

        Trainers have a line for every part of a step, except for optional parts (IF_REPORTED) without a value. Servers
        and reducers have lines only for the metrics that they report.
        """
        reported = {field: track.ring.last(field) for field in WRITTEN} if track is not None else {}
        self.setVisible(any(value is not None for value in reported.values()))
        if track is None:
            return
        self.heading.setText(self.tr("Serving") if track.serves else self.tr("Step"))
        for field, text in self.predicted.items():
            text.setVisible(predicted is not None)
            if predicted is not None:
                text.setText(self.tr("predicted {time}").format(time=written(field, getattr(predicted, field))))
        for field, value in self.values.items():
            is_shown = reported[field] is not None or not (track.serves or field in IF_REPORTED)
            value.setText(written(field, reported[field]))
            for one in (self.names[field], value):
                one.setVisible(is_shown)
                one.setToolTip(sentence_of(field, served=track.serves))
