"""The Advice drawer, which predicts the speed of the topology on the fleet, and has buttons that apply
recommendations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QHeaderView, QTableWidget, QTableWidgetItem, QWidget

from torchyard_core.advisor.recommendation import Advice, Alternative
from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import count, seconds
from torchyard_core.next_steps import ProfileScript
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.topology.advice.curve import SpeedCurve
from torchyard_gui.widgets import Card, ElidedLabel, label, remove_widgets, scroll_area
from torchyard_gui.widgets.buttons import push_button, tool_button
from torchyard_gui.widgets.containers import prepare_rows
from torchyard_gui.widgets.layouts import FLUSH, hbox, settle_layouts, vbox
from torchyard_gui.widgets.next_steps import Here, error_text
from torchyard_gui.widgets.text_labels import SectionLabel

SETTLE_MS = 400
"""Delay in milliseconds between an edit of the topology and the request for new advice."""
TABLE_ROWS = 6


class Advisor(Protocol):
    """Interface for predictions and measurements, which `AdviceSource` implements."""

    def advise(
        self,
        source: TopologyFile,
        facts: Sequence[HostFacts],
        done: Callable[[Advice], None],
        failed: Callable[[TorchyardError], None],
        owner: QObject,
        *,
        without_history: bool = False,
    ) -> Job: ...

    def measure(
        self,
        source: TopologyFile,
        say: Callable[[str], None],
        done: Callable[[], None],
        failed: Callable[[TorchyardError], None],
        owner: QObject,
    ) -> Job: ...

    def stop_measuring(self) -> None: ...


class AdviceDrawer(QFrame):
    """Shows advice for the open topology. While the drawer is visible, the advice is updated after each edit."""

    apply_wanted = Signal(object, str)
    """Emitted with the topology of a recommendation and its title."""
    closed = Signal()

    def __init__(
        self,
        advisor: Advisor,
        source: Callable[[], TopologyFile],
        facts: Callable[[], Sequence[HostFacts]],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("panel", "right")
        self.setAccessibleName(self.tr("Advice"))
        self.setMinimumWidth(METRICS.drawer)
        self._advisor = advisor
        self._source = source
        self._facts = facts
        self._job: Job | None = None
        self._measuring: Job | None = None
        self.advice: Advice | None = None
        self._soon = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._soon.timeout.connect(self.refresh)

        self.title = ElidedLabel(self.tr("Advice"), role="title")
        cross = tool_button("close", self.tr("Close (Esc)"), self.closed)
        tip = self.tr("Run the script alone for at most a minute on one host of each kind, and measure its steps")
        self.profile = push_button(self.tr("Profile"), self.measure, tip=tip)
        self.stop = push_button(self.tr("Stop"), advisor.stop_measuring, "quiet")
        self.stop.hide()
        self.message = label(ink="2", wrap=True)
        self.cards: list[Card] = []
        self.curve = SpeedCurve()
        self.next_host = label(role="small", ink="2", wrap=True)
        self.table = QTableWidget(0, 3)
        prepare_rows(self.table, self.tr("Alternatives"))
        self.table.setHorizontalHeaderLabels([self.tr("Topology"), self.tr("Speed"), self.tr("Step")])
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for column in (1, 2):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self.table.setFixedHeight((TABLE_ROWS + 1) * METRICS.row + 4)
        self.table.itemSelectionChanged.connect(self._show_details)
        self.details = label(role="small", ink="2", wrap=True)
        self.apply = push_button(self.tr("Apply the selected one"), self._apply_selected)
        self.remarks = label(role="small", ink="3", wrap=True)
        self.with_history = QCheckBox(self.tr("Correct by past runs"))
        self.with_history.setToolTip(
            self.tr("If past runs of the same files were slower or faster than predicted, correct the prediction")
        )
        self.with_history.setChecked(True)
        self.with_history.toggled.connect(self.refresh)
        self._results = QWidget()
        self._cards = vbox(margins=FLUSH, spacing=8)
        vbox(
            self._cards,
            self.curve,
            self.next_host,
            SectionLabel(self.tr("Best of each strategy")),
            self.table,
            self.details,
            hbox(self.apply, None, margins=FLUSH),
            self.remarks,
            self.with_history,
            parent=self._results,
            margins=FLUSH,
            spacing=8,
        )
        contents = QWidget()
        vbox(
            hbox(self.profile, self.stop, None, margins=FLUSH, spacing=8),
            self.message,
            self._results,
            None,
            parent=contents,
            margins=(14, 4, 14, 14),
            spacing=8,
        )
        head = hbox((self.title, 1), cross, margins=(14, 10, 8, 4))
        vbox(head, (scroll_area(contents), 1), parent=self, margins=FLUSH, spacing=0)
        self.setFocusProxy(self.profile)
        self._results.hide()

    @property
    def is_measuring(self) -> bool:
        return self._measuring is not None and not self._measuring.is_finished

    def topology_changed(self) -> None:
        """Schedules new advice, so that several successive edits cause only one update."""
        if self.isVisible():
            self._soon.start()

    def refresh(self) -> None:
        """Requests advice for the open topology immediately."""
        self._soon.stop()
        if self._job is not None:
            self._job.cancel()
        if not self.is_measuring and self.advice is None:
            self.message.setText(self.tr("Predicting …"))
        self._job = self._advisor.advise(
            self._source(),
            self._facts(),
            self._show,
            self._failed,
            self,
            without_history=not self.with_history.isChecked(),
        )

    def measure(self) -> None:
        """Measures the script, and then requests new advice."""
        if self.is_measuring:
            return
        self.message.setText(self.tr("Preparing the measurement …"))
        self._set_measuring(True)
        self._measuring = self._advisor.measure(self._source(), self._say, self._measured, self._measuring_failed, self)

    def _say(self, sentence: str) -> None:
        if self.is_measuring:
            self.message.setText(sentence)

    def _measured(self) -> None:
        self._set_measuring(False)
        self.message.setText(self.tr("The script was measured."))
        self.refresh()

    def _measuring_failed(self, error: TorchyardError) -> None:
        self._set_measuring(False)
        self._show_error(error)

    def _set_measuring(self, on: bool) -> None:
        self.profile.setEnabled(not on)
        self.stop.setVisible(on)

    def _failed(self, error: TorchyardError) -> None:
        self.advice = None
        self._results.hide()
        if not self.is_measuring:
            self._show_error(error)

    def _show_error(self, error: TorchyardError) -> None:
        here: Here = {ProfileScript: self.tr("Press “Profile” above to measure its steps.")}
        self.message.setText(error_text(error, here=here))

    def _show(self, advice: Advice) -> None:
        self.advice = advice
        unit = self._unit()
        if not self.is_measuring:
            considered = (
                self.tr("1 topology was considered.")
                if advice.candidates == 1
                else self.tr("{count} topologies were considered.")
            )
            self.message.setText(considered.format(count=f"{advice.candidates:,}"))
        remove_widgets(self._cards, self.cards)
        self.cards = []
        of_gpus, of_hosts = (
            self.tr("Fewest GPUs, at least 90 % as fast"),
            self.tr("Fewest hosts, at least 90 % as fast"),
        )
        shown = [
            (self.tr("Fastest"), advice.fastest),
            (of_gpus if advice.has_gpus else of_hosts, advice.fewest),
            (self.tr("Fastest on what is free or yours now"), advice.available),
        ]
        for heading, alternative in shown:
            card = self._card(heading, alternative, unit)
            self._cards.addWidget(card)
            card.show()  # Without this call, Qt would show the card only after the next layout.
            self.cards.append(card)
        self.curve.show_points(advice.curve, advice.fastest.counts.trainers, unit)
        self._show_next_host(advice, unit)
        self._fill(advice)
        self.remarks.setText("\n".join((*advice.fastest.prediction.notes, *advice.remarks)))
        self.remarks.setVisible(bool(self.remarks.text()))
        self._results.show()
        settle_layouts()

    def _unit(self) -> str:
        has_samples = self.advice is None or self.advice.has_samples
        return self.tr("samples/s") if has_samples else self.tr("steps/s")

    def _card(self, heading: str, alternative: Alternative | None, unit: str) -> Card:
        card = Card()
        card.body.setSpacing(3)
        card.body.addWidget(label(heading, role="small", ink="2", wrap=True))
        if alternative is None:
            card.body.addWidget(label(self.tr("No trainer fits there."), wrap=True))
            return card
        prediction = alternative.prediction
        card.body.addWidget(label(alternative.title, role="strong", wrap=True))
        text = self.tr("{speed} {unit} ({low} to {high}), {bottleneck}")
        card.body.addWidget(
            label(
                text.format(
                    speed=count(prediction.samples_s),
                    unit=unit,
                    low=count(prediction.low),
                    high=count(prediction.high),
                    bottleneck=prediction.bottleneck,
                ),
                role="small",
                ink="2",
                wrap=True,
            )
        )
        if alternative.topology == self._source().topology:
            card.body.addWidget(label(self.tr("This is the current topology."), role="small", ink="3"))
        else:
            button = push_button(self.tr("Apply"), lambda: self._apply(alternative), "quiet")
            button.setAccessibleName(self.tr("Apply {title}").format(title=alternative.title))
            card.body.addLayout(hbox(button, None, margins=FLUSH))
        return card

    def _show_next_host(self, advice: Advice, unit: str) -> None:
        if advice.next_host is None:
            self.next_host.setText(self.tr("All hosts that can train are used."))
            return
        text = self.tr("Another host would add {speed} {unit}.")
        if advice.next_host < 0:
            text = self.tr("Another host would cost {speed} {unit}.")
        self.next_host.setText(text.format(speed=count(abs(advice.next_host)), unit=unit))

    def _fill(self, advice: Advice) -> None:
        self.table.setRowCount(len(advice.alternatives))
        for row, each in enumerate(advice.alternatives):
            title = f"{each.title} *" if each.changes_result else each.title
            speed = f"{count(each.prediction.samples_s)}/s"
            for column, text in enumerate((title, speed, seconds(each.prediction.step_s))):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                if column:
                    item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                self.table.setItem(row, column, item)
        self.table.selectRow(0)
        self._show_details()

    @property
    def _selected(self) -> Alternative | None:
        row = self.table.currentRow()
        if self.advice is None or not 0 <= row < len(self.advice.alternatives):
            return None
        return self.advice.alternatives[row]

    def _show_details(self) -> None:
        chosen = self._selected
        self.apply.setEnabled(chosen is not None)
        if chosen is None:
            self.details.setText("")
            return
        prediction = chosen.prediction
        text = self.tr("Compute {compute}, exchange {exchange}, wait {wait}. {bottleneck}.").format(
            compute=seconds(prediction.compute_s),
            exchange=seconds(prediction.exchange_s),
            wait=seconds(prediction.wait_s),
            bottleneck=prediction.bottleneck[:1].upper() + prediction.bottleneck[1:],
        )
        if chosen.changes_result:
            text += " " + self.tr("* It changes the result of training: compare the loss too.")
        self.details.setText(text)

    def _apply_selected(self) -> None:
        if self._selected is not None:
            self._apply(self._selected)

    def _apply(self, alternative: Alternative) -> None:
        self.apply_wanted.emit(alternative.topology, alternative.title)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._soon.start()

    def hideEvent(self, event: QHideEvent) -> None:
        self._soon.stop()
        super().hideEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
            return
        super().keyPressEvent(event)
