"""Calendar access of a launch (`launch.calendar_interface`): finds the GPUs that the launch may use, and books them.

The pure functions are in `launch_availability`; this module reads and writes the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchyard_core.booking.errors import Refused, StoreUnavailable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.launch_availability import (
    clashing_bookings,
    first_bookings,
    holds_slots,
    hosts_limited_to,
    hosts_with_gpus,
    hosts_without_booked,
    hosts_without_closed,
    own_bookings,
    slots_of_plan,
    slots_to_book,
)
from torchyard_core.booking.model import USUAL_LENGTH, Booking, Draft, whole_seconds
from torchyard_core.booking.rules.open_times import check_windows
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Conflict
from torchyard_core.booking.search.slot_search import Fit, Wish
from torchyard_core.booking.slots import format_slots, slots_of
from torchyard_core.booking.sync.cached_calendar import Calendar, View, age
from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.formatting import command_length, command_time, counted, format_hours, span, until
from torchyard_core.launch.calendar_interface import BookingOptions, ChosenBooking, Reservation
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Ask, Confirmation
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.next_steps import Advice, BookGpus, ChangeBooking, LaunchAt, LaunchWithBooking, ListBookings
from torchyard_core.topology.host_facts import HostFacts

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

AT_LEAST = timedelta(minutes=15)
"""A run without a booking may use only GPUs that no other user has booked within this time after the run's start."""


AHEAD = timedelta(days=400)
"""How far ahead the user's bookings of cluster nodes are looked up."""


class GpusBooked(RunFailed):
    """Raised when a run cannot start because its GPUs are booked. `conflict` has the details."""

    def __init__(self, message: str, conflict: Conflict, hint: Advice):
        super().__init__(message, code="booked", hint=hint)
        self.conflict = conflict


class LaunchBooking:
    """Implements the calendar interface (`LaunchCalendar`) for one launch."""

    def __init__(
        self,
        calendar: Calendar,
        zone: str,
        wanted: BookingOptions,
        *,
        arguments: Sequence[str] = ("FILE",),
        verb: str = "run",
        on_trouble: Callable[[TorchyardError], None] = lambda error: None,
    ):
        """Creates the object without opening the calendar.

        Args:
            calendar: The user's calendar.
            zone: The time zone for times in messages.
            wanted: The user's options for the booking.
            arguments: Arguments of the command that repeats this launch. Error messages suggest such commands.
            verb: The command: `run` or `sweep`.
            on_trouble: Called with calendar errors that do not stop the launch.
        """
        self._calendar = calendar
        self._zone = zone
        self._wanted = wanted
        self._usual_length = wanted.usual_length or USUAL_LENGTH
        self._arguments = tuple(arguments)
        self._verb = verb
        self._on_trouble = on_trouble
        self._known: Sequence[HostFacts] = ()
        self._view = View((), (), None, False)
        self._start = whole_seconds(wanted.start_at or datetime.now(UTC))
        self._is_later = wanted.start_at is not None
        self._person = ""
        self._rules: Rules | None = None
        """The team's rules; None if there is no calendar or the database is unavailable."""
        self._chosen: Booking | None = None
        self._made: Booking | None = None
        self._extended: tuple[str, datetime] | None = None
        self._used: tuple[str, str] | None = None
        self._relinked: tuple[str, str] | None = None
        """The ID of a booking that was reassigned to this run, and the ID of the run that used the booking before."""

    def chosen_booking(self) -> ChosenBooking | None:
        if self._wanted.booking_id is None:
            return None
        return _as_chosen(self._load_chosen(self._calendar.store(), self._wanted.booking_id))

    def node_bookings(self, prefix: str) -> Sequence[ChosenBooking]:
        if not self._calendar.has_begun:
            return ()
        try:
            store = self._calendar.store()
        except StoreUnavailable as error:
            self._on_trouble(error)
            return ()
        now = store.now()
        own = store.bookings(now, now + AHEAD, owner=store.person, live=True)
        of_nodes = (one for one in own if one.end > now and any(gpu.startswith(prefix) for gpu in one.gpus))
        return tuple(map(_as_chosen, sorted(of_nodes, key=lambda one: (one.start, one.id))))

    def use_nodes(self, booking: ChosenBooking) -> None:
        self._used = booking.id, ""

    def choices(self, known: Sequence[HostFacts]) -> Sequence[Sequence[HostFacts]]:
        self._load_calendar(known)
        if self._is_later:
            # The current use of the GPUs does not matter for a later start.
            known = [replace(host, busy_gpus=frozenset(), gpu_users={}) for host in known]
        others = self._others(self._start, self._start + AT_LEAST)
        if self._chosen is not None:
            return [hosts_limited_to(known, self._chosen.gpus, others)]
        ways: list[Sequence[HostFacts]] = []
        for booking in own_bookings(self._view.bookings, self._person, self._start):
            ways.append(hosts_limited_to(known, booking.gpus, others))
        length = self._wanted.length or self._usual_length
        # If the launch makes a booking, it cannot use GPUs that the user has already booked.
        whose = self._view.bookings if self._wanted.length else self._not_mine()
        bookable = hosts_without_closed(known, self._closed(length))
        ways.append(hosts_without_booked(bookable, first_bookings(whose, self._start, self._start + length)))
        if self._wanted.length is None:
            ways.append(hosts_without_booked(known, others))
        return ways

    def refuse(self, planned: Plan) -> None:
        taken = slots_of_plan(planned, self._known, (slot.id for slot in self._view.slots))
        if self._chosen is not None:
            raise RunFailed(
                f"the run does not fit in the booking {self._chosen.title!r} of {self._names(self._chosen.gpus)}: "
                f"it would take {self._names(taken)}.",
                code="not_in_booking",
                hint=ChangeBooking(self._chosen.id),
            )
        length = self._wanted.length or AT_LEAST
        whose = self._view.bookings if self._wanted.length else self._not_mine()
        found = clashing_bookings(taken, first_bookings(whose, self._start, self._start + length))
        if not found:
            return  # The rules forbid booking these GPUs. The error is reported later, when the run tries to book them.
        hold = self._wanted.length or self._usual_length
        draft = Draft(planned.name, slots_to_book(taken), self._start, self._start + hold, self._zone)
        conflict = Conflict(draft, found, self._nearest(draft))
        as_of = "" if self._view.is_live else f" That is {age(self._view, datetime.now(UTC))}."
        message = conflict.sentence(self._view.slots, self._person) + as_of
        raise GpusBooked(message, conflict, self._way_out(conflict))

    def settle(self, planned: Plan, run_id: str, name: str, ask: Ask) -> Reservation:
        taken = slots_of_plan(planned, self._known, (slot.id for slot in self._view.slots))
        start_at = self._start if self._is_later else None
        if not taken:
            return Reservation(owner=self._person, start_at=start_at)
        own = [self._chosen] if self._chosen else own_bookings(self._view.bookings, self._person, self._start)
        holding = next((one for one in own if holds_slots(one, taken)), None)
        if holding is not None:
            return self._hold(holding, taken, run_id, start_at)
        if self._wanted.length is not None:
            return self._book(taken, self._wanted.length, run_id, name, start_at)
        hosts = hosts_with_gpus(planned)
        if len(hosts) > 1:
            # If the database is unavailable, the error is raised here, before the user is asked.
            self._calendar.store()
            length = self._usual_length
            end = until(self._start, self._start + length, self._zone)
            names, lasts = self._names(slots_to_book(taken)), command_length(length)
            what = f"GPUs of {counted(len(hosts), 'host')}, {names}, are taken only with a booking, "
            question = Confirmation(
                "needs_booking",
                f"{what}so that the team sees who has them.",
                f"Book them until {end} ({format_hours(length)})?",
                (LaunchWithBooking(self._arguments, lasts, self._verb), BookGpus(names.replace(", ", ","), lasts)),
                accept="book",
            )
            if not ask(question):
                raise RunFailed(question.message, code=question.code, hint=question.advice)
            return self._book(taken, length, run_id, name, start_at)
        checks = (*self._unknown(taken), *self._free(taken))
        return Reservation(checks, owner=self._person, start_at=start_at)

    def begun(self) -> None:
        if self._used is None:
            return
        booking_id, run_id = self._used
        try:
            store = self._calendar.store()
            booking = store.booking(booking_id)
            if booking.run_id != run_id and run_id:
                store.change(booking_id, run_id=run_id)
            if booking.start <= store.now():
                store.mark_active(booking_id)
        except TorchyardError as error:
            self._on_trouble(error)

    def take_back(self) -> None:
        try:
            if self._made is not None:
                self._calendar.store().cancel(self._made.id)
            elif self._extended is not None:
                booking_id, end = self._extended
                self._calendar.store().change(booking_id, end=end)
            if self._relinked is not None:
                booking_id, run_id = self._relinked
                self._calendar.store().change(booking_id, run_id=run_id)
        except TorchyardError as error:
            self._on_trouble(error)
        self._made = self._extended = self._relinked = None

    def close(self) -> None:
        """Closes the calendar."""
        self._calendar.close()

    def _load_calendar(self, known: Sequence[HostFacts]) -> None:
        """Adds the hosts' slots to the calendar, and loads the calendar.

        If the database is unavailable, the last known state is loaded. If the user has also chosen a booking,
        StoreUnavailable is raised instead.
        """
        self._known = known
        if not self._calendar.has_begun and not self._wanted.booking_id:
            self._person = self._calendar.person
            self._view = View((), slots_of(known, is_private=True), datetime.now(UTC), True)
            return
        try:
            store = self._calendar.store()
        except StoreUnavailable:
            pass  # The view loaded below contains the reason and the last known state.
        else:
            self._person, self._rules = store.person, store.rules()
            store.remember_slots(slots_of(known, is_private=store.is_private))
            if self._wanted.start_at is None:
                self._start = store.now()
            if self._wanted.booking_id and self._chosen is None:
                self._chosen = self._load_chosen(store, self._wanted.booking_id)
                self._is_later = self._chosen.start > store.now()
                self._start = max(self._chosen.start, store.now())
        if self._wanted.booking_id and self._chosen is None:
            self._calendar.store()  # If the database is still unavailable, this call raises StoreUnavailable again.
        self._person = self._person or self._calendar.person
        length = max(self._wanted.length or timedelta(), self._usual_length, AT_LEAST)
        self._view = self._calendar.view(self._start, self._start + length)

    def _load_chosen(self, store: BookingStore, booking_id: str) -> Booking:
        booking = store.booking(booking_id)
        if booking.owner != store.person:
            message = f"{booking.title!r} is {booking.owner}'s booking: a run starts with one of your own"
            raise Refused(message, code="not_yours", hint=ListBookings("--mine"))
        if not booking.is_live or booking.end <= store.now():
            raise Refused(f"the booking {booking.title!r} is over", code="ended", hint="Book anew with `--book 4h`.")
        return booking

    def _closed(self, length: timedelta) -> set[str]:
        """Returns the IDs of slots that the rules do not allow the user to book for `length` from the run's start."""
        rules, slots = self._rules, self._view.slots
        if rules is None or not rules.windows:
            return set()
        within = Interval(self._start, self._start + length)
        return {slot.id for slot in slots if check_windows([slot.id], within, rules, self._person, slots)}

    def _not_mine(self) -> list[Booking]:
        return [one for one in self._view.bookings if one.owner != self._person]

    def _others(self, start: datetime, end: datetime) -> dict[str, Booking]:
        return first_bookings(self._not_mine(), start, end)

    def _names(self, slots: Sequence[str]) -> str:
        return format_slots(slots, self._view.slots)

    def _unknown(self, taken: Sequence[str]) -> tuple[Check, ...]:
        """Returns a warning if the calendar is unavailable and the run uses slots."""
        if self._view.is_live or not taken:
            return ()
        known = age(self._view, datetime.now(UTC)) or "no copy of it is stored here"
        message = f"the calendar cannot be reached ({known}): others may have booked {self._names(taken)} since"
        return (Check("booking", "", True, message, self._view.why, warning=True, code="store_away"),)

    def _free(self, taken: Sequence[str]) -> tuple[Check, ...]:
        """Returns a checklist line that names the next booking of the slots by another user or says that none exists.

        Called for slots that the run uses without a booking. If the calendar is unavailable and its last known state
        has no booking of another user, no line is returned.
        """
        names = self._names(taken)
        later = clashing_bookings(taken, self._others(self._start, self._start + self._usual_length))
        if later:
            first = min(later, key=lambda one: one.booking.start).booking
            when = f"{span(first.start, first.end, self._zone)} ({self._zone})"
            message = f"{names}: {first.owner} has booked {self._names(first.gpus)} {when}"
            return (Check("booking", "", True, message, "Then this run may be stopped.", warning=True),)
        if not self._view.is_live:
            return ()
        return (Check("booking", "", True, f"{names}: not booked by others"),)

    def _hold(self, booking: Booking, taken: Sequence[str], run_id: str, start_at: datetime | None) -> Reservation:
        """Uses an existing booking, and extends it if the user requests more time."""
        wanted = self._wanted.length
        if wanted is not None and booking.end < self._start + wanted:
            old = booking.end
            booking = self._calendar.store().change(booking.id, end=self._start + wanted)
            self._extended = booking.id, old
        self._used = booking.id, run_id if self._chosen is not None else ""
        if self._view.is_live:
            self._claim(booking, run_id)
        end = until(self._start, booking.end, self._zone)
        message = f"{self._names(slots_to_book(taken))}: in your booking {booking.title!r}, until {end}"
        line = Check("booking", "", True, message)
        return Reservation(
            (*self._unknown(taken), line), booking.id, booking.owner, booking.end, booking.stop_at_end, start_at
        )

    def _claim(self, booking: Booking, run_id: str) -> None:
        """Assigns the booking of an earlier run to this run, and marks a booking that has begun as active.

        Called before the run begins, so that no other desktop releases the booking in the meantime.
        """
        store = self._calendar.store()
        try:
            if booking.run_id not in (None, run_id):
                store.change(booking.id, run_id=run_id)
                self._relinked = booking.id, str(booking.run_id)
            if booking.start <= store.now():
                store.mark_active(booking.id)
        except TorchyardError as error:
            if error.code == "ended":  # The booking has ended or was released, so other bookings may hold its GPUs now.
                raise
            self._on_trouble(error)

    def _book(
        self, taken: Sequence[str], length: timedelta, run_id: str, name: str, start_at: datetime | None
    ) -> Reservation:
        store = self._calendar.store()
        store.remember_slots(slots_of(self._known, is_private=store.is_private))
        start = self._start if start_at is not None else store.now()
        draft = Draft(name, slots_to_book(taken), start, start + length, self._zone, run_id=run_id)
        self._made = booking = store.book(draft)
        self._used = booking.id, run_id
        message = f"{self._names(booking.gpus)}: booked until {until(start, booking.end, self._zone)}"
        line = Check("booking", "", True, message)
        return Reservation((line,), booking.id, booking.owner, booking.end, booking.stop_at_end, start_at)

    def _nearest(self, draft: Draft) -> tuple[Fit, ...]:
        """Returns the next time at which the GPUs of the draft are free for the length of the draft.

        Returns an empty tuple if there is no such time, the database is unavailable, or the rules forbid the booking.
        """
        try:
            wish = Wish(len(draft.gpus), draft.interval.duration, self._start, one_host=False, gpus=draft.gpus)
            return self._calendar.store().find(wish, 1, self._zone)
        except (StoreUnavailable, Refused):
            return ()

    def _way_out(self, conflict: Conflict) -> Advice:
        if not conflict.nearest:
            return "Choose other GPUs, or ask its owner." if self._view.is_live else self._view.why
        first = conflict.nearest[0]
        length = command_length(first.end - first.start)
        step = LaunchAt(self._arguments, command_time(first.start, self._zone), length, self._verb)
        return conflict.way_out(self._view.slots), step


def _as_chosen(booking: Booking) -> ChosenBooking:
    return ChosenBooking(booking.id, booking.gpus, booking.start, booking.end, booking.title, booking.owner)
