"""Values of the calendar. Stored times are aware datetimes in UTC with whole seconds; zones are IANA names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from torchyard_core.booking.intervals import Interval

USUAL_LENGTH = timedelta(hours=8)
"""The default length of a booking, for example for a run if no earlier run of the same name has succeeded."""


class State(StrEnum):
    """State of a booking. BOOKED becomes ACTIVE when the booking has begun and a run is launched with it."""

    BOOKED = "booked"
    ACTIVE = "active"
    RELEASED = "released"
    CANCELLED = "cancelled"
    NO_SHOW = "no_show"

    @property
    def is_live(self) -> bool:
        """Whether a booking in this state still holds its GPUs."""
        return self in (State.BOOKED, State.ACTIVE)


@dataclass(frozen=True)
class Slot:
    """One lane of the calendar: a GPU, or the single CPU slot of a host without GPUs (`index` is None)."""

    id: str
    """The GPU's UUID; `HOST:cpu` for a CPU slot."""
    host: str
    index: int | None
    model: str = ""
    memory_mb: int = 0

    @property
    def is_cpu(self) -> bool:
        return self.index is None

    @property
    def node(self) -> str:
        """The name of the cluster node that the slot represents; "" for a GPU or CPU slot.

        If the slot represents a node, `host` is the name of the cluster.
        """
        return self.id.partition("/")[2] if is_of_cluster(self.id) else ""

    @property
    def name(self) -> str:
        """The name of the slot in commands: `gpu-b:2`, `big-cpu:cpu`; `hpc:n7` for a node."""
        if self.node:
            return f"{self.host}:{self.node}"
        return f"{self.host}:{'cpu' if self.index is None else self.index}"

    def sort_key(self) -> tuple[str, int, str]:
        return self.host, -1 if self.index is None else self.index, self.id


def cpu_slot(host: str) -> Slot:
    """Returns the CPU slot of a host without GPUs."""
    return Slot(f"{host}:cpu", host, None)


NODE_PREFIX = "slurm:"
"""Prefix of the IDs of a cluster's nodes, and of the jobs and reservations on them."""


def is_of_cluster(one_id: str) -> bool:
    """Returns whether an ID identifies a cluster's node, job or reservation. Jobs and reservations are read-only."""
    return one_id.startswith(NODE_PREFIX)


def cluster_of(slot_id: str) -> str:
    """Returns the cluster of a node, given by its ID; "" for any other slot."""
    return slot_id.removeprefix(NODE_PREFIX).partition("/")[0] if is_of_cluster(slot_id) else ""


def is_cpu_id(slot_id: str) -> bool:
    """Returns whether an ID identifies a CPU slot, whose bookings do not count towards GPU-hours."""
    return slot_id.endswith(":cpu")


@dataclass(frozen=True)
class Draft:
    """A requested booking. If `owner` is None, the booking is for the user of the store."""

    title: str
    gpus: tuple[str, ...]
    start: datetime
    end: datetime
    zone: str
    purpose: str = ""
    owner: str | None = None
    run_id: str | None = None
    stop_at_end: bool = False
    uid: str = ""
    """UID of the calendar event from which the booking was imported."""

    @property
    def interval(self) -> Interval:
        return Interval(self.start, self.end)


@dataclass(frozen=True)
class Booking:
    """GPUs reserved for one owner. All GPUs of a booking are reserved for the same interval."""

    id: str
    owner: str
    title: str
    purpose: str
    gpus: tuple[str, ...]
    """Slot IDs, sorted."""
    start: datetime
    end: datetime
    zone: str
    state: State
    created: datetime
    changed: datetime
    series_id: str | None = None
    run_id: str | None = None
    stop_at_end: bool = False
    let_go_at: datetime | None = None
    """The time before the booking's end at which the booking stopped holding its GPUs; None if there is no such time.

    A booking stops early if it is released, cancelled or unused. For a cancelled booking, the time is its start.
    """
    uid: str = ""

    @property
    def until(self) -> datetime:
        """The actual end of the booking, which is never before its start."""
        return self.end if self.let_go_at is None else min(self.end, max(self.start, self.let_go_at))

    @property
    def interval(self) -> Interval:
        """The time during which the booking holds or held its GPUs."""
        return Interval(self.start, self.until)

    @property
    def duration(self) -> timedelta:
        return self.until - self.start

    @property
    def is_live(self) -> bool:
        return self.state.is_live

    def is_running(self, now: datetime) -> bool:
        # The times are compared first, since few bookings of a calendar are current.
        return self.start <= now < self.end and self.is_live

    def to_json(self, only: Collection[str] = ()) -> dict[str, Any]:
        """Returns the booking as JSON, with all fields or only those named in `only`."""
        names = [field.name for field in fields(self) if not only or field.name in only]
        return {name: value_to_json(getattr(self, name)) for name in names}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Booking:
        """Parses the output of `to_json`. Raises ValueError, KeyError or TypeError for other data."""
        times = {name: from_rfc3339(data[name]) for name in ("start", "end", "created", "changed")}
        let_go = data["let_go_at"]
        return Booking(
            **{
                **data,
                **times,
                "gpus": tuple(data["gpus"]),
                "state": State(data["state"]),
                "let_go_at": from_rfc3339(let_go) if let_go else None,
            }
        )


@dataclass(frozen=True)
class Series:
    """A series of bookings. `rule` is an RRULE (RFC 5545) that repeats the interval from `start` to `end`.

    The rule is expanded in the local time of `zone`.
    """

    id: str
    owner: str
    title: str
    rule: str
    start: datetime
    end: datetime
    zone: str
    created: datetime


@dataclass(frozen=True)
class Login:
    """The team member to whom a UNIX user name belongs, on the hosts that match a pattern.

    A user name that several members share (such as `ubuntu`) has several entries.
    """

    host_pattern: str
    user: str
    person: str


@dataclass(frozen=True)
class Use:
    """A period during which a GPU was in use. `person` is empty if the person is unknown."""

    gpu: str
    host: str
    person: str
    start: datetime
    end: datetime
    run_id: str | None = None

    @property
    def interval(self) -> Interval:
        return Interval(self.start, self.end)


@dataclass(frozen=True)
class IdleEvidence:
    """Evidence that a booking's GPUs were idle from `idle_since` to `seen_at`, and that no live run held them."""

    booking_id: str
    idle_since: datetime
    seen_at: datetime
    reporter: str = ""


@dataclass(frozen=True)
class Position:
    """A position in the change log: the number and the random token of an entry.

    The token distinguishes the entry from an entry with the same number in a restored backup.
    """

    seq: int
    token: str


@dataclass(frozen=True)
class Changes:
    """The current state of bookings that changed after an earlier position, and the IDs of deleted bookings.

    `position` is the end of the change log when it was read.
    """

    position: Position
    bookings: tuple[Booking, ...]
    gone: frozenset[str]


def whole_seconds(moment: datetime) -> datetime:
    """Returns the time in UTC, truncated to whole seconds, which is the resolution of the stores."""
    return moment.astimezone(UTC).replace(microsecond=0)


def rfc3339(moment: datetime) -> str:
    """Formats a moment in UTC: `2026-11-22T09:00:00Z`."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def from_rfc3339(text: str) -> datetime:
    """Parses an RFC 3339 time, or another ISO 8601 time with an offset. Raises ValueError for other text."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no offset from UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text} is in no year of UTC") from None


def value_to_json(value: Any) -> Any:
    """Converts a field of a booking to JSON."""
    if isinstance(value, datetime):
        return rfc3339(value)
    return list(value) if isinstance(value, tuple) else value


def normalized(draft: Draft) -> Draft:
    """Returns the draft with sorted, unique GPUs, times in UTC with whole seconds, and a stripped title."""
    return replace(
        draft,
        title=draft.title.strip(),
        gpus=tuple(sorted(set(draft.gpus))),
        start=whole_seconds(draft.start),
        end=whole_seconds(draft.end),
    )
