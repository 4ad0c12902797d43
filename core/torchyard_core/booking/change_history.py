"""The history of a booking: each change with its time, user and desktop, and the values before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from torchyard_core.booking.model import NODE_PREFIX, Slot, is_of_cluster, rfc3339, value_to_json
from torchyard_core.booking.slots import format_slots
from torchyard_core.formatting import wall_clock

_WORDS = {
    "owner": "owner",
    "title": "title",
    "purpose": "purpose",
    "starts": "start",
    "ends": "end",
    "zone": "zone",
    "state": "state",
    "gpus": "GPUs",
    "run_id": "run",
    "stop_at_end": "run stops at the end",
    "let_go_at": "let go at",
}


@dataclass(frozen=True)
class FieldChange:
    """A field before and after a change.

    None means that the field was empty or the booking did not exist. Values of `gpus` are tuples of slot IDs.
    """

    field: str
    before: Any
    after: Any

    @property
    def is_of_nodes(self) -> bool:
        """Whether the field is `gpus` and its values are nodes of a cluster."""
        return self.field == "gpus" and any(map(is_of_cluster, self.before or self.after or ()))


@dataclass(frozen=True)
class Change:
    """The changes to a booking in one transaction.

    `person` is empty if another program changed the SQLite file directly.
    """

    at: datetime
    person: str
    desktop: str
    """The name of the desktop as reported by the client, or the ID of a cluster (`slurm:hpc`). It is not verified."""
    kind: str
    """The kind of the change: `made`, `changed` or `deleted`."""
    fields: tuple[FieldChange, ...]

    @property
    def cluster(self) -> str:
        """The cluster, if Slurm or a cluster admin changed or refused the booking's reservation; otherwise ""."""
        return self.desktop.removeprefix(NODE_PREFIX) if is_of_cluster(self.desktop) else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "at": rfc3339(self.at),
            "person": self.person,
            "desktop": self.desktop,
            "kind": self.kind,
            "fields": [
                {"field": one.field, "before": value_to_json(one.before), "after": value_to_json(one.after)}
                for one in self.fields
            ],
        }


@dataclass(frozen=True)
class Noted:
    """A row of a booking's history. A database trigger writes it when the booking or one of its GPUs changes.

    `before` and `after` hold the fields of the booking, or `{"gpu": id}`. None means that the booking did not exist or
    did not have the GPU.
    """

    at: datetime
    step: int
    person: str
    desktop: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def changes_of(noted: Iterable[Noted]) -> tuple[Change, ...]:
    """Combines the rows of each transaction into one change. Transactions that changed no field are omitted.

    The rows must be in the order in which they were written.
    """
    found = []
    gpus: set[str] = set()
    for _, group in groupby(noted, key=lambda one: (one.step, one.person, one.desktop)):
        rows = list(group)
        had = tuple(sorted(gpus))
        of_booking = [one for one in rows if "gpu" not in (one.before or one.after or {})]
        for one in rows:
            if one not in of_booking:
                gpus -= {str((one.before or {}).get("gpu"))}
                gpus |= {str(one.after["gpu"])} if one.after else set()
        before = of_booking[0].before if of_booking else {}
        after = of_booking[-1].after if of_booking else {}
        names = [name for name in _WORDS if name in {**(before or {}), **(after or {})}]
        values = [(name, _value(name, before), _value(name, after)) for name in names]
        values.append(("gpus", had or None, tuple(sorted(gpus)) or None))
        fields = tuple(FieldChange(*one) for one in values if one[1] != one[2])
        kind = "made" if before is None else "deleted" if after is None else "changed"
        if fields:
            found.append(Change(rows[0].at, rows[0].person, rows[0].desktop.removeprefix("torchyard "), kind, fields))
    return tuple(found)


def _value(name: str, fields: Mapping[str, Any] | None) -> Any:
    value = (fields or {}).get(name)
    if value is None:
        return None
    try:
        if name in ("starts", "ends", "let_go_at"):
            moment = datetime.fromisoformat(value) if isinstance(value, str) else datetime.fromtimestamp(value, UTC)
            return moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        return str(value)
    return bool(value) if name == "stop_at_end" else value


def headline(change: Change, zone: str) -> str:
    """Formats the time and the author of a change: `Mon 2026-11-23 09:00  kim (desk-1) changed it`."""
    desktop = f" ({change.cluster or change.desktop})" if change.desktop else ""
    person = "Slurm" if change.cluster else change.person or "unknown"
    when = wall_clock(change.at, zone, "%a %Y-%m-%d %H:%M")
    verb = "created" if change.kind == "made" else change.kind
    return f"{when}  {person}{desktop} {verb} it"


def lines(change: Change, slots: Sequence[Slot], zone: str) -> list[str]:
    """Formats the changed fields, one line each: `end: Mon 2026-11-23 17:00 → Mon 2026-11-23 18:00`.

    Empty fields of a new booking are omitted.
    """
    found = []
    for one in change.fields:
        before, after = (_words(value, slots, zone) for value in (one.before, one.after))
        if before != after and not (change.kind == "made" and not one.after):
            name = "nodes" if one.is_of_nodes else _WORDS[one.field]
            found.append(f"{name}: " + " → ".join(filter(None, (before, after or "none"))))
    return found


def _words(value: Any, slots: Sequence[Slot], zone: str) -> str:
    if isinstance(value, datetime):
        return wall_clock(value, zone, "%a %Y-%m-%d %H:%M")
    if isinstance(value, tuple):
        return format_slots(value, slots) if value else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
