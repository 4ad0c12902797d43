"""A reminder that a booking ends soon, shown above every page. A button extends the booking if that is possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from PySide6.QtCore import QObject, QTimer

from torchyard_core.booking.model import Booking
from torchyard_core.booking.slots import format_slots
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import NoticeBar
from torchyard_gui.widgets.screen_reader import announce

LOOK_MS = 15_000


class BookingReminder(QObject):
    """Reminds the user that a booking which is in use ends soon. The user can dismiss the reminder."""

    def __init__(
        self,
        model: BookingsModel,
        with_run: Callable[[], Collection[str]],
        show_booking: Callable[[str], None],
        say: Callable[[str], None],
        parent: QObject,
    ):
        """Connects the reminder to the calendar.

        Args:
            with_run: Returns the IDs of the bookings used by live runs.
            say: Called with a message after a booking has been extended.
        """
        super().__init__(parent)
        self.bar = NoticeBar()
        self.shown: Reminder | None = None
        self._model = model
        self._with_run = with_run
        self._show_booking = show_booking
        self._say = say
        self._dismissed: set[tuple[str, datetime]] = set()
        self._problem = ""
        self._action_calls: list[Callable[[], None]] = []
        self._clock = QTimer(self, interval=LOOK_MS)
        self._clock.timeout.connect(self.refresh)
        self._clock.start()
        self.bar.action_triggered.connect(lambda number: self._action_calls[number]())
        self.bar.closed.connect(self._send_away)
        model.changed.connect(self.refresh)

    def refresh(self) -> None:
        """Shows the reminder for the booking that ends first, unless the user has dismissed it. Hides the bar if no
        reminder is due.
        """
        model = self._model
        seen = model.seen
        found = reminders(seen.bookings, seen.person, model.now, model.in_use, self._with_run())
        soon = next((one for one in found if one.key not in self._dismissed), None)
        if soon is None:
            self.shown = None
            self.bar.clear()
            return
        if self.shown is None or soon.key != self.shown.key:
            self._problem = ""
        if self.shown != soon or self.bar.isHidden():
            self._show(soon)
        elif self.bar.text != self._sentence(soon):
            self.bar.reword(self._sentence(soon))

    def stop(self) -> None:
        """Stops updating the reminder; called when the window closes."""
        self._clock.stop()
        self._model.changed.disconnect(self.refresh)

    def _show(self, soon: Reminder) -> None:
        self.shown = soon
        actions = [(self.tr("Show booking"), lambda: self._show_booking(soon.booking.id))]
        if soon.longer and self._model.seen.is_live:
            text = self.tr("Extend by {length}").format(length=labels.duration_text(soon.longer.total_seconds()))
            actions.insert(0, (text, lambda: self._extend(soon)))
        self._action_calls = [do for _, do in actions]
        self.bar.show_notice("warn", self._sentence(soon), *(text for text, _ in actions))

    def _sentence(self, soon: Reminder) -> str:
        seen, now, booking = self._model.seen, self._model.now, soon.booking
        text = self.tr("Your booking “{title}” of {gpus} ends at {time}, in {left}.").format(
            title=booking.title,
            gpus=format_slots(booking.gpus, seen.slots),
            time=labels.clock(booking.end, seen.zone),
            left=labels.duration_text(max(60.0, (booking.end - now).total_seconds())),
        )
        return " ".join(filter(None, (text, self._after(soon), self._problem)))

    def _after(self, soon: Reminder) -> str:
        """Describes what happens at the end of the booking: whether its run continues or stops, and which booking
        follows.
        """
        follower = soon.follower
        if soon.booking.stop_at_end:
            return self.tr("The run is then stopped.")
        if follower is None:
            return self.tr("No booking follows, so the run continues.")
        person = self._model.seen.person
        at = labels.clock(follower.start, self._model.seen.zone)
        if follower.owner == person:
            return self.tr("Your booking “{title}” follows at {time}.").format(time=at, title=follower.title)
        stopped = self.tr("A run that is still active then saves and is stopped.")
        return self.tr("The next booking is {who}'s, from {time}.").format(who=follower.owner, time=at) + " " + stopped

    def _extend(self, soon: Reminder) -> None:
        booking, end = soon.booking, soon.booking.end + soon.longer

        def done(_: object) -> None:
            time = labels.clock(end, self._model.seen.zone)
            self._say(self.tr("“{title}” is yours until {time}.").format(title=booking.title, time=time))

        def failed(error: TorchyardError) -> None:
            self._problem = labels.error_text(error)
            announce(self.bar, self._problem, urgent=True)
            self.refresh()

        self._model.act(lambda store: store.change(booking.id, end=end), done, failed, self)

    def _send_away(self) -> None:
        if self.shown is not None:
            self._dismissed.add(self.shown.key)
            self.shown = None
            self.refresh()


BEFORE = timedelta(minutes=15)
"""How long before the end of a booking the reminder appears."""
LONGER = timedelta(hours=1)
STEP = timedelta(minutes=15)


@dataclass(frozen=True)
class Reminder:
    """A booking that ends soon.

    `follower` is the next booking of one of the same GPUs if it starts less than an hour after this booking ends, and
    otherwise None. `longer` is the time by which this booking can be extended: an hour or, if there is a follower, the
    time until the follower begins, rounded down to a multiple of 15 minutes.
    """

    booking: Booking
    follower: Booking | None
    longer: timedelta

    @property
    def key(self) -> tuple[str, datetime]:
        """Identifies the reminder. Once a reminder has been dismissed, no reminder with the same key is shown."""
        return self.booking.id, self.booking.end


def reminders(
    bookings: Collection[Booking], person: str, now: datetime, in_use: Collection[str], with_run: Collection[str]
) -> tuple[Reminder, ...]:
    """Returns the user's reminders that are due, in the order in which the bookings end.

    Args:
        in_use: IDs of the slots in use.
        with_run: IDs of the bookings used by live runs.
    """
    found = [
        _reminder(one, bookings)
        for one in bookings
        if one.owner == person
        and one.is_live
        and one.is_running(now)
        and one.end - now <= BEFORE
        and (one.id in with_run or any(gpu in in_use for gpu in one.gpus))
    ]
    return tuple(sorted(found, key=lambda one: (one.booking.end, one.booking.id)))


def _reminder(booking: Booking, bookings: Iterable[Booking]) -> Reminder:
    gpus = set(booking.gpus)
    following = [one for one in bookings if one.is_live and one.start >= booking.end and gpus.intersection(one.gpus)]
    follower = min(following, key=lambda one: (one.start, one.id), default=None)
    if follower is None or follower.start - booking.end >= LONGER:
        return Reminder(booking, None, LONGER)
    return Reminder(booking, follower, (follower.start - booking.end) // STEP * STEP)
