"""`torchyard status`: use and bookings of every host and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from torchyard_core.booking.model import Slot, cpu_slot
from torchyard_core.booking.search.current_availability import SlotNow, slots_now
from torchyard_core.booking.slots import slots_of
from torchyard_core.booking.sync.cached_calendar import Calendar, View
from torchyard_core.cli.calendar_sync_messages import print_age
from torchyard_core.cli.context import command_context
from torchyard_core.cli.output import Json, error_as_json, print_json, say, table
from torchyard_core.errors import AgentMissing, AgentRefused, HostError, TorchyardError
from torchyard_core.fleet.gpu_occupancy import SAMPLE_TIMEOUT_S, replicas_without_gpu, users_of
from torchyard_core.formatting import counted, memory, percent, until, utc_timestamp

HEADINGS = ("HOST", "GPU", "MODEL", "MEMORY", "USED", "UTIL", "BY")
LOOK_AHEAD = timedelta(days=14)
"""A GPU's next booking is shown only if it begins within this time from now."""


def status(context: typer.Context, as_json: Json = False) -> None:
    """Show the use, the booking and the availability of every host and GPU of the fleet.

    A GPU that is used without a booking is not free. Exit code 3: a host could not be reached.

    Example: torchyard status
    """
    from torchyard_core.cli.calendar_sync_messages import sync_calendar

    chosen = command_context(context)
    calendar = chosen.calendar()
    hosts = [host.name for host in chosen.inventory().hosts]
    with chosen.fleet(chosen.inventory().hosts) as fleet:

        def sample(name: str) -> dict[str, Any] | AgentRefused:
            try:
                taken: dict[str, Any] = fleet.link(name, install=False).call("telemetry.sample", {}, SAMPLE_TIMEOUT_S)
                return taken
            except AgentRefused as refusal:
                return refusal

        samples = fleet.each(hosts, sample)
        sync_calendar(chosen, fleet, calendar)
        now = datetime.now(UTC)
        view, trouble = _seen(calendar, now)
        there = {slot.id: slot for slot in (*view.slots, *slots_of(fleet.known(), is_private=True))}
    of_fleet = [slot for slot in there.values() if slot.host in samples]
    is_known = view.as_of is not None
    found_now = slots_now(of_fleet, view.bookings, _users(samples) if is_known else {}, now)
    if as_json:
        slots = {name: [one.to_json() for one in found_now if one.slot.host == name] for name in samples}
        print_json([{**_as_json(name, found), "slots": slots[name]} for name, found in samples.items()])
    else:
        booked = {(one.slot.host, _number(one.slot)): one for one in found_now}
        zone = chosen.zone()
        lines = [
            [*row, booked_by(one, now, zone) if (one := booked.get((row[0], row[1]))) is not None else "-"]
            if is_known
            else [*row, "?"]
            for name, found in samples.items()
            for row in rows(name, found, [one.slot for one in found_now if one.slot.host == name])
        ]
        table((*HEADINGS, "BOOKED BY"), lines)
        gpus = [one for one in found_now if not one.slot.is_cpu]
        if gpus and is_known:
            say(f"Free now: {sum(one.is_free is True for one in gpus)} of {counted(len(gpus), 'GPU')}.")
        for found in samples.values():
            if isinstance(found, TorchyardError):
                say(found.sentence())
    print_age(view)
    silent = [found for found in samples.values() if isinstance(found, TorchyardError)]
    if code := max((error.exit_code for error in silent if not isinstance(error, AgentMissing)), default=trouble):
        raise typer.Exit(code)


def booked_by(one: SlotNow, now: datetime, zone: str) -> str:
    """Returns the value of the column BOOKED BY.

    Examples: `kim until 17:00 (digits)`, `free until Mon 23 Nov 09:00 (lee)`, `free`, `used without a booking`.
    """
    if one.booked is not None:
        return f"{one.booked.owner} until {until(now, one.booked.end, zone)} ({one.booked.title})"
    if one.users:
        return "used without a booking"
    word = "not booked" if one.users is None else "free"
    if one.following is None:
        return word
    return f"{word} until {until(now, one.following.start, zone)} ({one.following.owner})"


def _seen(calendar: Calendar, now: datetime) -> tuple[View, int]:
    """Returns the bookings of the coming days, and the exit code of the command.

    If the database is unavailable, the bookings are the last known ones. After any other calendar error, the view is
    empty, and the exit code is that of the error.
    """
    try:
        return calendar.view_around(now, now + LOOK_AHEAD), 0
    except TorchyardError as error:
        return View((), (), None, False, error.sentence()), error.exit_code


def _users(samples: Mapping[str, dict[str, Any] | TorchyardError]) -> dict[str, list[str]]:
    """Returns the users of each slot on the hosts that answer."""
    found: dict[str, list[str]] = {}
    for name, sample in samples.items():
        if not isinstance(sample, TorchyardError):
            found[cpu_slot(name).id] = replicas_without_gpu(sample)
            found |= {str(gpu["uuid"]): users_of(gpu) for gpu in sample["gpus"]}
    return found


def _as_json(name: str, found: dict[str, Any] | TorchyardError) -> dict[str, Any]:
    """Returns {"name", "state", "as_of", "host", "gpus", "replicas", "error"} with the units of docs/protocol.md."""
    if isinstance(found, TorchyardError):
        state = found.state if isinstance(found, HostError) else "degraded"
        nothing: dict[str, Any] = {"as_of": None, "host": None, "gpus": [], "replicas": {}}
        return {"name": name, "state": state, **nothing, "error": error_as_json(found)}
    as_of = utc_timestamp(found["time"])
    now = {key: found[key] for key in ("host", "gpus", "replicas")}
    return {"name": name, "state": "ready", "as_of": as_of, **now, "error": None}


def rows(name: str, found: dict[str, Any] | TorchyardError, known: Sequence[Slot] = ()) -> list[list[str]]:
    """Returns the rows of a host. The cells of each row are in the order of HEADINGS.

    `known` contains the host's slots. If the host does not answer, the rows of its GPUs are derived from these slots.
    """
    if isinstance(found, TorchyardError):
        state = found.state if isinstance(found, HostError) else "degraded"
        gpus = [slot for slot in known if not slot.is_cpu]
        return [
            [name, "?", state, "?", "?", "?", "unknown"],
            *(
                [name, _number(slot), slot.model, _memory(slot.memory_mb), "?", "?", "unknown"]
                for slot in sorted(gpus, key=Slot.sort_key)
            ),
        ]
    host = found["host"]
    cpus = counted(host["cpus"], "CPU")
    of_host = [_memory(host["memory_mb"]), _memory(host["memory_used_mb"])]
    return [
        [name, "cpu", cpus, *of_host, _percent(host["cpu"]), ", ".join(replicas_without_gpu(found)) or "-"],
        *([name, *_gpu(gpu)] for gpu in found["gpus"]),
    ]


def _number(slot: Slot) -> str:
    return "cpu" if slot.is_cpu else str(slot.index)


def _gpu(gpu: dict[str, Any]) -> list[str]:
    by = ", ".join(users_of(gpu)) or "-"
    return [
        str(gpu["index"]),
        str(gpu["name"]),
        _memory(gpu["memory_mb"]),
        _memory(gpu["memory_used_mb"]),
        _percent(gpu["utilisation"]),
        str(gpu["problem"] or by),
    ]


def _memory(mebibytes: float | None) -> str:
    return "?" if mebibytes is None else memory(mebibytes)


def _percent(value: float | None) -> str:
    return "?" if value is None else percent(value)
