"""Dialog that creates or changes a booking, with exact times, several GPUs and repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QDialog, QLineEdit, QPlainTextEdit, QProgressBar, QWidget

from torchyard_core.app.book_gpus import BookGpus
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, is_of_cluster
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.slots import format_slots
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.dialogs.booking_form import Fields, format_time, read
from torchyard_gui.bookings.undo import change_series_to, change_to
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import FormRow, clear_layout, label
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import DialogButtons, dialog_layout, grow_to_fit
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.screen_reader import announce

if TYPE_CHECKING:
    from torchyard_core.booking.store import SeriesBooked

WIDTH = 480
LISTED = 6
"""Maximum number of refused bookings of a series that are listed. Any further refused bookings are only counted."""
FOLLOWING, EVERYTHING = "following", "everything"
"""Values of the field *Applies to* with which a change applies to several bookings of a series."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/Los_Angeles", "Asia/Seoul", "Asia/Tokyo")


class BookingDialog(QDialog):
    """Dialog for a single booking or a series. Show it with `open()`.

    `booked` is emitted with new bookings, `changed` with a booking after and before its change, and `series_changed`
    with the changed bookings of a series after and before the change.
    """

    booked = Signal(tuple)
    changed = Signal(object, object)
    series_changed = Signal(tuple, tuple)

    def __init__(
        self, model: BookingsModel, draft: Draft, booking: Booking | None = None, parent: QWidget | None = None
    ):
        """Fills the fields from `draft`. If `booking` is given, the dialog changes that booking."""
        super().__init__(parent)
        self.model = model
        self.booking = booking
        only_nodes = bool(model.slots) and all(slot.node for slot in model.slots)
        has_nodes = any(map(is_of_cluster, draft.gpus)) or (only_nodes and not draft.gpus)
        new = self.tr("Book nodes") if has_nodes else self.tr("Book GPUs")
        self.setWindowTitle(self.tr("Edit booking") if booking else new)
        self.setMinimumWidth(WIDTH)
        self.title = QLineEdit(draft.title)
        self.gpus = QLineEdit(format_slots(draft.gpus, model.slots), placeholderText="gpu-b:2-5")
        if has_nodes:
            self.gpus.setPlaceholderText(", ".join([slot.name for slot in model.slots if slot.node][:2]))
        self.start = QLineEdit(format_time(draft.start, draft.zone))
        self.end = QLineEdit(format_time(draft.end, draft.zone))
        self.zone = QComboBox(editable=True)
        self.zone.addItems(list(dict.fromkeys([draft.zone, *ZONES])))
        self.purpose = QPlainTextEdit(draft.purpose)
        self.purpose.setFixedHeight(54)
        self.purpose.setTabChangesFocus(True)
        self.repeat = QComboBox()
        for text, rule in (
            (self.tr("does not repeat"), ""),
            (self.tr("daily"), "FREQ=DAILY"),
            (self.tr("Monday to Friday"), "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR"),
            (self.tr("weekly"), "FREQ=WEEKLY"),
            (self.tr("monthly"), "FREQ=MONTHLY"),
        ):
            self.repeat.addItem(text, rule)
        self.repeat.setEditable(True)
        self.repeat.setToolTip(self.tr("Choose one, or enter a rule: FREQ=WEEKLY;INTERVAL=2 (RFC 5545)"))
        self.times = QLineEdit("10")
        self.times.setToolTip(self.tr("Number of times, or the last day: 10, 2026-12-31"))
        self.free_ones = QCheckBox(self.tr("Book the free times, list the conflicts"))
        self.applies = QComboBox()
        for text, which in (
            (self.tr("this booking"), ""),
            (self.tr("this and following bookings"), FOLLOWING),
            (self.tr("all that have not begun"), EVERYTHING),
        ):
            self.applies.addItem(text, which)
        self.stop = QCheckBox(self.tr("Always stop the run when the booking ends"))
        self.stop.setChecked(draft.stop_at_end)
        self.rows = {
            "title": FormRow(self.tr("Title"), self.title),
            "gpus": FormRow(
                self.tr("Nodes") if has_nodes else self.tr("GPUs"),
                self.gpus,
                self.tr("Reserved in Slurm if you are one of its operators, and otherwise not exclusive")
                if has_nodes
                else "",
            ),
            "start": FormRow(self.tr("Start"), self.start),
            "end": FormRow(self.tr("End"), self.end, self.tr("A time, or a length: +4h")),
            "zone": FormRow(self.tr("Time zone"), self.zone),
            "purpose": FormRow(self.tr("Purpose"), self.purpose),
            "repeat": FormRow(self.tr("Repeats"), self.repeat),
            "times": FormRow(self.tr("How often"), self.times),
            "applies": FormRow(self.tr("Applies to"), self.applies),
        }
        self.problem = label(ink="fail", wrap=True)
        self.problem.hide()
        self.ways = vbox(spacing=4)
        self.work = label(self.tr("Asking Slurm for the reservation …"), ink="2")
        self.progress = QProgressBar()
        self.progress.setRange(0, 0)
        self._job: Job | None = None
        self._lay_out()
        self.repeat.currentTextChanged.connect(self._show_repeat)
        self._show_repeat()
        self.title.selectAll()
        self.title.setFocus()

    def draft(self) -> Draft | None:
        """Returns a draft with the values of the fields, or shows the problems beside the fields and returns None."""
        fields = Fields(
            self.title.text(),
            self.gpus.text(),
            self.start.text(),
            self.end.text(),
            self.zone.currentText(),
            self.purpose.toPlainText(),
            self.stop.isChecked(),
        )
        found = read(fields, self.model.slots, self.model.now)
        wrong = found if isinstance(found, dict) else {}
        for name, row in self.rows.items():
            row.set_problem(labels.error_text(wrong[name]) if name in wrong else "")
        grow_to_fit(self)
        return None if isinstance(found, dict) else found

    def rule(self) -> str:
        """Returns the recurrence rule (RRULE), or "" if there is no repetition."""
        number = self.repeat.findText(self.repeat.currentText())
        rule: str = self.repeat.itemData(number) if number >= 0 else self.repeat.currentText().strip()
        often = self.times.text().strip()
        if not rule or not often or "COUNT=" in rule or "UNTIL=" in rule:
            return rule
        return f"{rule};COUNT={often}" if often.isdigit() else f"{rule};UNTIL={often.replace('-', '')}"

    def accept(self) -> None:
        """Creates or changes the booking. The dialog closes only after success."""
        draft = self.draft()
        if draft is None:
            self._say("")
            self._go_to_wrong_field()
            return
        self._busy(True, on_nodes=any(map(is_of_cluster, draft.gpus)))
        rule = self.rule() if self.booking is None else ""
        free_ones = self.free_ones.isChecked()
        if self.booking is not None:
            before, which = self.booking, self.applies.currentData()
            if which:
                self._job = self.model.act(
                    lambda store: change_series_to(store, before, draft, everything=which == EVERYTHING),
                    self._series_changed,
                    self._failed,
                    self,
                    draft.gpus,
                )
            else:
                self._job = self.model.act(
                    lambda store: change_to(store, before, draft, expected=before),
                    self._changed,
                    self._failed,
                    self,
                    draft.gpus,
                )
        else:
            self._job = self.model.act(
                lambda store: BookGpus(store).book(draft, rule, free_ones=free_ones),
                self._series,
                self._failed,
                self,
                draft.gpus,
            )

    def reject(self) -> None:
        """Closes the dialog. If a booking or change is still waiting for Slurm, it is reverted."""
        if self._job is not None and not self._job.is_finished:
            self._job.cancel()
        super().reject()

    def _go_to_wrong_field(self) -> None:
        """Focuses the first invalid field and announces its problem."""
        row = next(row for row in self.rows.values() if row.problem)
        row.field.setFocus()
        announce(self, f"{row.name.text()}: {row.problem}", urgent=True)

    def _changed(self, booking: Booking) -> None:
        self.changed.emit(booking, self.booking)
        super().accept()

    def _series_changed(self, found: tuple[tuple[Booking, ...], tuple[Booking, ...]]) -> None:
        before, after = found
        self.series_changed.emit(after, before)
        super().accept()

    def _series(self, result: SeriesBooked) -> None:
        if result.booked:
            self.booked.emit(result.booked)
        if not result.missed:
            super().accept()
            return
        self._busy(False)
        zone, now = self.model.seen.zone, self.model.now
        lines = [self.tr("{count} booked. Not booked:").format(count=len(result.booked))]
        for one in result.missed[:LISTED]:
            lines.append(f"{labels.time_span(one.interval.start, one.interval.end, zone, now)}: {one.why.message}")
        if len(result.missed) > LISTED:
            lines.append(self.tr("and {count} more").format(count=len(result.missed) - LISTED))
        self._say("\n".join(lines))
        if result.booked:
            self.ok.hide()
            self.no.setText(self.tr("Close"))
            self.no.setDefault(True)

    def _failed(self, error: TorchyardError) -> None:
        self._busy(False)
        if isinstance(error, Refused) and error.code in ("bad_rule", "too_many"):
            self.rows["repeat"].set_problem(labels.error_text(error))
            return
        self._say(
            labels.error_text(error)
            if not isinstance(error, Clash)
            else labels.error_text(Refused(error.message, code=""))
        )
        if isinstance(error, Clash):
            zone, now = self.zone.currentText(), self.model.now
            for fit in error.conflict.nearest[:3]:
                when = labels.time_span(fit.start, fit.end, zone, now, is_inside=True)
                where = format_slots(fit.gpus, self.model.slots)
                take = self._taker(where, format_time(fit.start, zone), format_time(fit.end, zone))
                button = push_button(self.tr("Use {gpus}, {when}").format(gpus=where, when=when), take, "quiet")
                button.setAutoDefault(False)
                self.ways.addWidget(button)
            grow_to_fit(self)

    def _taker(self, gpus: str, start: str, end: str) -> Callable[[], None]:
        def take() -> None:
            for field, text in ((self.gpus, gpus), (self.start, start), (self.end, end)):
                field.setText(text)
            self._say("")
            self.ok.setFocus()

        return take

    def _say(self, text: str) -> None:
        self.problem.setText(text)
        self.problem.setVisible(bool(text))
        announce(self, text, urgent=True)
        clear_layout(self.ways)
        grow_to_fit(self)

    def _busy(self, on: bool, *, on_nodes: bool = False) -> None:
        self.ok.setEnabled(not on)
        if on:
            self._say("")
        for part in (self.work, self.progress):
            part.setVisible(on and on_nodes)
        if on and on_nodes:
            announce(self, self.work.text())
        grow_to_fit(self)

    def _show_repeat(self) -> None:
        repeats = bool(self.rule()) and self.booking is None
        self.rows["repeat"].set_problem("")
        self.rows["times"].setVisible(repeats)
        self.free_ones.setVisible(repeats)

    def _lay_out(self) -> None:
        rows = dialog_layout(self, spacing=8)
        for name, row in self.rows.items():
            rows.addWidget(row)
            if name == "times":
                rows.addWidget(self.free_ones)
        self.rows["repeat"].setVisible(self.booking is None)
        self.rows["applies"].setVisible(self.booking is not None and self.booking.series_id is not None)
        self.rows["zone"].setEnabled(self.booking is None)
        rows.addWidget(self.stop)
        for part in (self.work, self.progress):
            part.hide()
            rows.addWidget(part)
        rows.addWidget(self.problem)
        rows.addLayout(self.ways)
        rows.addStretch()
        buttons = DialogButtons(self, self.tr("Save") if self.booking else self.tr("Book"))
        self.ok, self.no = buttons.agree, buttons.cancel
        self.ok.setDefault(True)
        rows.addSpacing(4)
        rows.addWidget(buttons)
