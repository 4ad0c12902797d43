"""The time for which a topology is planned, and the bookings of each GPU in that time.

The window imports this module when it starts. Slow imports are therefore inside the functions that need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import USUAL_LENGTH, Booking
from torchyard_core.formatting import command_length, format_hours, until, wall_clock

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=366)
NOW = "now"


@dataclass(frozen=True)
class PlannedTime:
    """The time for which a topology is planned. A `start` of None means the current time."""

    start: datetime | None = None
    length: timedelta = USUAL_LENGTH

    @property
    def is_later(self) -> bool:
        return self.start is not None

    def interval(self, now: datetime) -> Interval:
        start = self.start or now
        return Interval(start, start + self.length)

    def at(self, now: datetime) -> PlannedTime:
        """Returns the planned time. If its `start` is not after `now`, the start is replaced with None."""
        return replace(self, start=None) if self.start is not None and self.start <= now else self

    def words(self, now: datetime, zone: str) -> str:
        """Formats the planned time: `now, 8 h`; `18:00, 4 h`; `Tue 24 Nov 09:00, 8 h`."""
        start = NOW if self.start is None else until(now, self.start, zone)
        return f"{start}, {format_hours(self.length)}"

    def start_words(self, zone: str) -> str:
        """Formats the start for an input field: `now`, or `2026-11-24 09:00` in the zone."""
        return NOW if self.start is None else wall_clock(self.start, zone, "%Y-%m-%d %H:%M")

    @property
    def length_words(self) -> str:
        """The length, formatted for an input field: `8h`."""
        return command_length(self.length)

    def to_text(self) -> str:
        """Formats the planned time for the settings: `now 8h`, `2026-11-24T08:00:00+00:00 8h`."""
        return f"{self.start.astimezone(UTC).isoformat() if self.start else NOW} {self.length_words}"


def from_text(text: str) -> PlannedTime:
    """Parses the output of `to_text`. Returns the default planned time if the text is invalid."""
    start, _, lasts = text.partition(" ")
    try:
        wanted = _length(lasts)
        return PlannedTime(None if start == NOW else datetime.fromisoformat(start).astimezone(UTC), wanted)
    except (Refused, ValueError):
        return PlannedTime()


def parse_planned_time(start: str, lasts: str, zone: str, now: datetime) -> PlannedTime:
    """Parses a start (`now`, `tomorrow 9`, `+2h`) and a length from user input.

    A start less than a minute ago means now.

    Raises:
        Refused: The input is invalid (for example with the code `bad_time`), or the start is in the past (code `past`).
    """
    from torchyard_core.booking.time_parser import moment

    wanted = _length(lasts)
    if start.strip().lower() in ("", NOW):
        return PlannedTime(None, wanted)
    begin = moment(start, zone, now)
    if begin <= now - timedelta(minutes=1):
        raise Refused(f"{start.strip()} is past", code="past", hint="Write `now`, or a time to come: tomorrow 9, +4h.")
    return PlannedTime(begin, wanted).at(now)


def _length(text: str) -> timedelta:
    from torchyard_core.booking.time_parser import length

    found = length(text)
    if not SHORTEST <= found <= LONGEST:
        raise Refused(f"`{text.strip()}` is no time to plan for", code="bad_time", hint="Write 4h, 90m, 2d or 1w.")
    return found


@dataclass(frozen=True)
class PlannedBookings:
    """The first live booking of each slot in the planned time, separately for the user and for other users."""

    others: Mapping[str, Booking] = field(default_factory=dict)
    own: Mapping[str, Booking] = field(default_factory=dict)


def bookings_in(bookings: Iterable[Booking], person: str, when: Interval) -> PlannedBookings:
    """Returns the first live booking of each slot in the time `when`, separately for `person` and other users."""
    from torchyard_core.booking.launch_availability import first_bookings

    known = list(bookings)
    return PlannedBookings(
        first_bookings([one for one in known if one.owner != person], when.start, when.end),
        first_bookings([one for one in known if one.owner == person], when.start, when.end),
    )


def when_booked(booking: Booking, start: datetime, zone: str) -> str:
    """Formats the time of a booking: `until 18:00` if it has begun at `start`, otherwise `from 14:00 to 18:00`.

    The day of the first time is included only if it differs from the day of `start`, and the day of the second time
    only if it differs from the day of the first.
    """
    end = until(start, booking.end, zone)
    if booking.start <= start:
        return f"until {end}"
    return f"from {until(start, booking.start, zone)} to {until(booking.start, booking.end, zone)}"
