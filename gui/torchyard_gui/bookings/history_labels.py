"""Formats the history of a booking with the terms and the time format of the Bookings page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torchyard_core.booking.change_history import Change, FieldChange
from torchyard_core.booking.model import Slot, State
from torchyard_core.booking.slots import format_slots
from torchyard_gui.bookings import labels

translate = labels.translate


@dataclass(frozen=True)
class HistoryView:
    """The slots, user, time zone and current time that are needed to describe the history of a booking."""

    slots: Sequence[Slot]
    me: str
    zone: str
    now: datetime


def change_headline(change: Change, view: HistoryView) -> str:
    """Returns the time and the author of a change, such as `Today 09:00 · kim (desk-1) changed it`."""
    texts = {
        "made": translate("Bookings", "{who} booked it"),
        "changed": translate("Bookings", "{who} changed it"),
        "deleted": translate("Bookings", "{who} deleted it"),
    }
    who = labels.owner_name(change.person, view.me) if change.person else translate("Bookings", "Another program")
    if change.cluster:
        who = translate("Bookings", "Slurm")
    if change.desktop:
        who = f"{who} ({change.cluster or change.desktop})"
    return f"{labels.moment_text(change.at, view.zone, view.now)} · {texts[change.kind].format(who=who)}"


def change_lines(change: Change, view: HistoryView) -> list[str]:
    """Returns the changed fields, one line each, such as `End: today 17:00 → today 18:00`.

    For a new booking, the lines are the title, the time and the GPUs.
    """
    fields = {one.field: one for one in change.fields}
    if change.kind == "made":
        values = {name: one.after for name, one in fields.items()}
        lines = [str(values.get("title") or "")]
        if isinstance(start := values.get("starts"), datetime) and isinstance(end := values.get("ends"), datetime):
            lines.append(labels.time_span(start, end, view.zone, view.now))
        return [line for line in (*lines, _value("gpus", values.get("gpus"), view)) if line]
    return [line for one in change.fields if (line := _line(one, view))]


def _line(one: FieldChange, view: HistoryView) -> str:
    before, after = _value(one.field, one.before, view), _value(one.field, one.after, view)
    if before == after:
        return ""
    name = translate("Bookings", "Nodes") if one.is_of_nodes else _names()[one.field]
    if not before:
        return f"{name}: {after}"
    return f"{name}: {before} → {after or translate('Bookings', 'none')}"


def _value(name: str, value: Any, view: HistoryView) -> str:
    if isinstance(value, datetime):
        return labels.moment_text(value, view.zone, view.now, is_inside=True)
    if isinstance(value, tuple):
        return format_slots(value, view.slots) if value else ""
    if isinstance(value, bool):
        return translate("Bookings", "yes") if value else translate("Bookings", "no")
    if name == "state" and value in [*State]:
        return labels.state_name(State(value))
    return "" if value is None else str(value)


def _names() -> dict[str, str]:
    return {
        "owner": translate("Bookings", "Booked for"),
        "title": translate("Bookings", "Title"),
        "purpose": translate("Bookings", "Purpose"),
        "starts": translate("Bookings", "Start"),
        "ends": translate("Bookings", "End"),
        "zone": translate("Bookings", "Time zone"),
        "state": translate("Bookings", "Status"),
        "gpus": translate("Bookings", "GPUs"),
        "run_id": translate("Bookings", "Run"),
        "stop_at_end": translate("Bookings", "Stop the run at the end"),
        "let_go_at": translate("Bookings", "Released"),
    }
