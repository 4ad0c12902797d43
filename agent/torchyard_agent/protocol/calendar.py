"""The calendar of an agent: a snapshot of the bookings for the next few days, which desktops send.

This module does no I/O. Agents have no access to the booking store. They enforce a snapshot only while it is fresh.
After that, until the end of the snapshot's period, they only record how GPUs are used. Times are in seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.timestamps import parse_timestamp

VERSION = 1
MAX_BYTES = 2 * 1024 * 1024
MAX_BOOKINGS = 5000
MAX_LOGINS = 5000
MAX_TEXT = 500
LONGEST_FRESH_S = 3600.0
"""Maximum of `Calendar.fresh_s`. A larger value is reduced to this maximum, and a value over 24 hours is an error."""
AHEAD_S = 300.0
"""Maximum number of seconds by which a snapshot's time may be ahead of this host's clock.

A snapshot that is further ahead is rejected, because a clock must be wrong. If it were accepted, snapshots with correct
times would count as older, and would be ignored until that time.
"""
OFF, OBSERVE, WARN, STOP = "off", "observe", "warn", "stop"
LEVELS = (OFF, OBSERVE, WARN, STOP)


class CalendarBooking(NamedTuple):
    """A booking that has not yet ended."""

    id: str
    owner: str
    title: str
    gpus: tuple[str, ...]
    start: float
    end: float
    run_id: str
    stop_at_end: bool

    def is_running(self, now: float) -> bool:
        return self.start <= now < self.end


class LoginEntry(NamedTuple):
    host: str
    """A pattern of host names."""
    user: str
    persons: tuple[str, ...]


class Enforcement(NamedTuple):
    """The rules of enforcement: how an agent treats processes that use GPUs booked by other users."""

    level: str = OFF
    grace_s: float = 300.0
    """Time in seconds from the first warning to SIGTERM."""
    dry_run: bool = True
    """Whether the agent only records its actions in the audit log, without carrying them out."""


class Calendar(NamedTuple):
    taken: float
    fresh_s: float
    until: float
    person: str
    """The person whose desktop sent the calendar."""
    bookings: tuple[CalendarBooking, ...]
    """The bookings, sorted by start."""
    logins: tuple[LoginEntry, ...] = ()
    enforcement: tuple[tuple[str, Enforcement], ...] = ()
    """Pairs of a pattern of host names and rules. The first pattern that matches a host determines its rules."""

    def is_fresh(self, now: float) -> bool:
        return self.taken - AHEAD_S <= now < self.taken + self.fresh_s

    def enforcement_on(self, host: str) -> Enforcement:
        return next((rule for pattern, rule in self.enforcement if fnmatchcase(host, pattern)), Enforcement())

    def on(self, gpu: str, now: float) -> CalendarBooking | None:
        """Returns the active booking of a GPU, or None. The store allows only one active booking per GPU."""
        return next((one for one in self.bookings if gpu in one.gpus and one.is_running(now)), None)

    def booking(self, booking_id: str) -> CalendarBooking | None:
        return next((one for one in self.bookings if one.id == booking_id), None)

    def persons_of(self, host: str, user: str) -> tuple[str, ...]:
        """Returns the people who may use a login on a host.

        The result contains the people to whom the table of logins assigns the login `user` on this host. If the table
        does not contain `user` at all, neither as a login nor as a person, the result is the person named `user`,
        provided that the calendar knows this person. Otherwise the result is empty, because the login may belong to
        another person.
        """
        found = {
            person
            for entry in self.logins
            if entry.user == user and fnmatchcase(host, entry.host)
            for person in entry.persons
        }
        named = any(user == entry.user or user in entry.persons for entry in self.logins)
        if not found and not named and self.knows(user):
            return (user,)
        return tuple(sorted(found))

    def knows(self, person: str) -> bool:
        """Returns whether this person owns a booking, is in the table of logins, or sent the calendar."""
        booked = any(one.owner == person for one in self.bookings)
        return booked or person == self.person or any(person in entry.persons for entry in self.logins)


def parse(data: object) -> Calendar:
    """Parses a desktop's snapshot. Raises RpcError (`bad_snapshot`) with the first error if the snapshot is invalid."""
    try:
        return _parse(data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        hint = "Upgrade the older of desktop and agent."
        raise RpcError(f"the snapshot of the bookings is not understood: {problem}", "bad_snapshot", hint) from None


_KEYS = frozenset(
    (
        *("version", "taken", "fresh_s", "from", "until", "person", "idle_release_min"),
        *("bookings", "logins", "enforcement"),
    )
)
_OF_BOOKING = frozenset(["id", "owner", "title", "gpus", "start", "end", "state", "run_id", "stop_at_end"])


def _parse(data: object) -> Calendar:
    snapshot = _object(data, _KEYS, "the snapshot")
    if snapshot["version"] != VERSION:
        raise ValueError(f"it is of version {str(snapshot['version'])[:20]}, not {VERSION}")
    bookings, logins = snapshot["bookings"], snapshot["logins"]
    if not isinstance(bookings, list) or not isinstance(logins, list):
        raise ValueError("bookings and logins must be lists")
    if len(bookings) > MAX_BOOKINGS or len(logins) > MAX_LOGINS:
        raise ValueError(f"more than {MAX_BOOKINGS} bookings or logins")
    if len(json.dumps(data)) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    taken = parse_timestamp(snapshot["taken"])
    fresh_s = _number(snapshot["fresh_s"], "fresh_s", LONGEST_FRESH_S * 24)
    known: dict[str, str] = {}
    found = sorted((_booked(one, known) for one in bookings), key=lambda one: (one.start, one.id))
    return Calendar(
        taken,
        min(fresh_s, LONGEST_FRESH_S),
        parse_timestamp(snapshot["until"]),
        _text(snapshot["person"], "person"),
        tuple(found),
        tuple(_login(one) for one in logins),
        tuple(_enforcement(one) for one in _list(snapshot.get("enforcement", []), "enforcement")),
    )


def _booked(data: object, known: dict[str, str]) -> CalendarBooking:
    """Parses a booking. `known` is a table of strings by which equal names of GPUs and owners share memory."""
    one = _object(data, _OF_BOOKING, "a booking")
    gpus = tuple(known.setdefault(name, name) for name in (_text(gpu, "gpus") for gpu in _list(one["gpus"], "gpus")))
    owner = _text(one["owner"], "owner")
    start, end = parse_timestamp(one["start"]), parse_timestamp(one["end"])
    if end <= start or not gpus:
        raise ValueError("a booking without time or GPUs")
    if one["state"] not in ("booked", "active") or not isinstance(one["stop_at_end"], bool):
        raise ValueError("a booking's state must be booked or active, stop_at_end true or false")
    run_id = _text(one["run_id"], "run_id") if one["run_id"] is not None else ""
    title = _text(one["title"], "title")
    return CalendarBooking(
        _text(one["id"], "id"), known.setdefault(owner, owner), title, gpus, start, end, run_id, one["stop_at_end"]
    )


def _login(data: object) -> LoginEntry:
    one = _object(data, frozenset(("host", "user", "persons")), "a login")
    persons = tuple(_text(person, "persons") for person in _list(one["persons"], "persons"))
    return LoginEntry(_text(one["host"], "host"), _text(one["user"], "user"), persons)


def _enforcement(data: object) -> tuple[str, Enforcement]:
    one = _object(data, frozenset(("host", "level", "grace_s", "dry_run")), "an enforcement")
    if one["level"] not in LEVELS or not isinstance(one["dry_run"], bool):
        raise ValueError(f"enforcement has the levels {', '.join(LEVELS)}, and dry_run true or false")
    return _text(one["host"], "host"), Enforcement(one["level"], _number(one["grace_s"], "grace_s"), one["dry_run"])


def _object(data: object, keys: Iterable[str], what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{what} must be an object")
    unknown = sorted(str(key)[:40] for key in data if key not in keys)
    if unknown:
        raise ValueError(f"{what} has an unknown key {unknown[0]!r}")
    return data


def _list(data: object, what: str) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{what} must be a list")
    return data


def _text(data: object, what: str) -> str:
    if not isinstance(data, str) or len(data) > MAX_TEXT:
        raise ValueError(f"{what} must be a text of at most {MAX_TEXT} letters")
    return data


def _number(data: object, what: str, most: float = 7 * 86400.0) -> float:
    if not isinstance(data, (int, float)) or isinstance(data, bool) or not 0 <= data <= most:
        raise ValueError(f"{what} must be a number of seconds from 0 to {most:.0f}")
    return float(data)
