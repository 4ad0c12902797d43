"""Drawer with the details of the selected booking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from PySide6.QtWidgets import QWidget

from torchyard_core.booking.model import Booking, Slot, is_of_cluster
from torchyard_core.booking.slots import format_slots
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.drawers.drawer import Drawer
from torchyard_gui.bookings.menu_actions import BookingActions
from torchyard_gui.widgets import label
from torchyard_gui.widgets.buttons import action_button
from torchyard_gui.widgets.layouts import fill
from torchyard_gui.widgets.text_labels import SectionLabel


class DetailsDrawer(Drawer):
    """Shows the details of a booking. The buttons trigger actions of the page."""

    def __init__(self, acts: BookingActions, parent: QWidget | None = None):
        super().__init__("", parent)
        self._shown = ""
        self.who = label(ink="2", wrap=True)
        self.when = label(role="strong", wrap=True)
        self.gpus = label(wrap=True)
        self.state = label(ink="2", wrap=True)
        self.note = label(ink="wait", wrap=True)
        self.run = label(role="small", ink="2", wrap=True)
        self.show_run = action_button(acts.run)
        self.show_run.setProperty("quiet", True)
        self.purpose = label(wrap=True)
        self.history = label(role="small", ink="2", wrap=True)
        self.history_title = SectionLabel(labels.translate("Bookings", "History"))
        self._show_history("")
        self.buttons = [action_button(action) for action in (acts.edit, acts.extend, acts.shorten, acts.release)]
        self.series = action_button(acts.cancel_series)
        lines = (self.when, self.gpus, self.who, self.state, self.note, self.run, self.show_run, self.purpose)
        fill(self.body, *lines, 8, *self.buttons, self.series, 8, self.history_title, self.history, None)

    def show_booking(
        self,
        booking: Booking,
        slots: Sequence[Slot],
        me: str,
        zone: str,
        now: datetime,
        note: str,
        can_change: bool,
        run_id: str = "",
    ) -> None:
        """Shows a booking.

        Args:
            can_change: Whether the user may change the booking. If not, the buttons that change it are hidden.
            run_id: ID of the run that uses the booking, if known.
        """
        if booking.id != self._shown:
            self._shown = booking.id
            # Hides the previous booking's history until this booking's history arrives.
            self._show_history("")
        self.title.setText(booking.title)
        self.setAccessibleName(booking.title)
        self.when.setText(labels.time_span(booking.start, booking.until, zone, now))
        self.when.setToolTip(f"{booking.start:%Y-%m-%d %H:%M} – {booking.until:%Y-%m-%d %H:%M} UTC")
        took = labels.duration_text(booking.duration.total_seconds())
        self.gpus.setText(f"{format_slots(booking.gpus, slots)} · {took}")
        owner = labels.owner_name(booking.owner, me)
        made = labels.translate("Bookings", "{owner}, booked in {zone}").format(owner=owner, zone=booking.zone)
        if is_of_cluster(booking.id):
            made = owner
        self.who.setText(made)
        self.state.setText(labels.state_text(booking, now))
        self.note.setText(note)
        self.note.setVisible(bool(note))
        run = labels.translate("Bookings", "Run {run}").format(run=run_id) if run_id else ""
        if booking.stop_at_end:
            run = " · ".join(
                filter(None, [run, labels.translate("Bookings", "the run is stopped when the booking ends")])
            )
        self.run.setText(run)
        self.run.setVisible(bool(run))
        self.show_run.setVisible(bool(run_id))
        self.purpose.setText(booking.purpose)
        self.purpose.setVisible(bool(booking.purpose))
        for button in self.buttons:
            button.setVisible(can_change)
        self.series.setVisible(can_change and booking.series_id is not None)
        running = booking.is_running(now)
        release = (
            labels.translate("Bookings", "Release now") if running else labels.translate("Bookings", "Cancel booking")
        )
        self.buttons[-1].setText(release)

    def show_history(self, changes: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Shows the history of the booking.

        Args:
            changes: The headline and the lines of details of each change, oldest first. The newest is shown first.
        """
        parts = ["\n".join([head, *what]) for head, what in reversed(changes)]
        self._show_history("\n".join(parts))

    def _show_history(self, text: str) -> None:
        self.history.setText(text)
        for part in (self.history_title, self.history):
            part.setVisible(bool(text))
