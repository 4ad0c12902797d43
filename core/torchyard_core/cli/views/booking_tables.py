"""Bookings as table rows, lines and JSON, and commands that hints propose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Slot, is_of_cluster, rfc3339
from torchyard_core.booking.search.conflict import Clash, fit_to_json
from torchyard_core.booking.search.slot_search import Fit
from torchyard_core.booking.slots import format_slots
from torchyard_core.booking.time_parser import end_moment, moment
from torchyard_core.booking.waitlist import Waiting, wish_to_json
from torchyard_core.cli.output import error_as_json, print_error, print_json_line, remark, say, table
from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import command_length, command_time, full_span, until, wall_clock
from torchyard_core.next_steps import joined


def print_bookings(
    bookings: Iterable[Booking], slots: Sequence[Slot], zone: str, exclusive: Collection[str] | None = None
) -> None:
    """Prints a table of bookings.

    `exclusive` contains the IDs of bookings whose nodes Slurm has reserved; None if unknown.
    """
    rows = [
        [
            one.id,
            one.owner,
            one.title,
            format_slots(one.gpus, slots),
            wall_clock(one.start, zone, "%a %Y-%m-%d %H:%M"),
            until(one.start, one.until, zone),
            f"{one.state}, not exclusive" if is_exclusive(one, exclusive) is False else str(one.state),
        ]
        for one in bookings
    ]
    table(("ID", "WHO", "TITLE", "GPUS", "FROM", "TO", "STATE"), rows)


def say_each(done: str, bookings: Iterable[Booking], slots: Sequence[Slot], zone: str) -> None:
    """Prints a line for each booking: `Booked b1f…: gpu-b:2-5 from …`."""
    for booking in bookings:
        say(f"{done} {booked_line(booking, slots, zone)}.")


def booking_json(booking: Booking, slots: Sequence[Slot], exclusive: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the booking as JSON with the names of its GPUs, and for a booking of nodes whether it is exclusive."""
    found = {**booking.to_json(), "names": format_slots(booking.gpus, slots)}
    if is_of_cluster(booking.id) or not any(map(is_of_cluster, booking.gpus)):
        return found
    return {**found, "exclusive": is_exclusive(booking, exclusive)}


def is_exclusive(booking: Booking, exclusive: Collection[str] | None) -> bool | None:
    """Returns whether Slurm has a reservation for a live booking of nodes.

    Returns None for any other booking, or if the reservations were not read.

    Args:
        exclusive: The IDs of the bookings with a reservation; None if Slurm was not asked.
    """
    has_nodes = not is_of_cluster(booking.id) and any(map(is_of_cluster, booking.gpus))
    return booking.id in exclusive if has_nodes and booking.is_live and exclusive is not None else None


def booked_line(booking: Booking, slots: Sequence[Slot], zone: str) -> str:
    """Formats a booking: `b1f…: gpu-b:2-5 from Mon 2026-11-23 09:00 to Mon 2026-11-23 17:00 (Europe/Berlin, 8 h)`."""
    return f"{booking.id}: {format_slots(booking.gpus, slots)} {full_span(booking.start, booking.end, zone)}"


def waiting_json(one: Waiting) -> dict[str, Any]:
    return {**one.__dict__, "wish": wish_to_json(one.wish), "created": rfc3339(one.created)}


def book_command(fit: Fit, slots: Sequence[Slot], zone: str, usual: str) -> str:
    """Returns the command that books the GPUs and the time of a search result.

    Args:
        zone: The time zone for times in the command.
        usual: The time zone that applies without --zone.
    """
    return f"torchyard book {_places(fit.gpus, slots)}{_when(fit, zone, usual)}"


def change_command(fit: Fit, booking: Booking, slots: Sequence[Slot], zone: str, usual: str) -> str:
    """Returns the command that moves a future booking to a search result."""
    now = " --from now"  # If `--from` were omitted, the end would be relative to the old start.
    moved = "" if set(fit.gpus) == set(booking.gpus) else f' --gpus "{_places(fit.gpus, slots)}"'
    return f"torchyard bookings change {booking.id}{moved}{_when(fit, zone, usual, now)}"


def _places(gpus: Sequence[str], slots: Sequence[Slot]) -> str:
    return format_slots(gpus, slots).replace(", ", " ")


def _when(fit: Fit, zone: str, usual: str, now: str = "") -> str:
    """Returns the options `--from`, `--to` and `--zone` for a search result.

    `now` replaces `--from` if the search result begins immediately.
    """
    at_once = fit.start - datetime.now(UTC) < timedelta(minutes=1)
    begin = now if at_once else f' --from "{command_time(fit.start, zone)}"'
    where = "" if zone == usual else f" --zone {zone}"
    return f"{begin} --to +{command_length(fit.end - fit.start)}{where}"


def fit_json(fit: Fit, slots: Sequence[Slot], zone: str, usual: str) -> dict[str, Any]:
    return {**fit_to_json(fit, slots), "command": book_command(fit, slots, zone, usual)}


def times(start: str, end: str, zone: str, now: datetime) -> tuple[datetime, datetime]:
    """Parses the times of `--from` and `--to`. Raises Refused if they are invalid."""
    begin = moment(start, zone, now)
    return begin, end_moment(end, begin, zone, now)


@contextmanager
def answering_clashes(slots: Sequence[Slot], command: Callable[[Fit], str], *, as_json: bool) -> Iterator[None]:
    """Prints a Clash that is raised in the block, and exits.

    If there is a free alternative, the message includes the command that `command` returns for the nearest one.
    """
    try:
        yield
    except Clash as clash:
        advice = clash.advice
        if clash.conflict.nearest:
            advice = joined(advice, f"The first one: `{command(clash.conflict.nearest[0])}`.")
        error = TorchyardError(clash.message, code=clash.code, hint=advice)
        if not as_json:
            print_error(error, as_json=False)
        else:
            print_json_line({"error": {**error_as_json(error), "conflict": clash.conflict.to_json(slots)}})
            remark(f"torchyard: {error.sentence()}")
        raise typer.Exit(clash.exit_code) from None


def why(refused: Refused) -> str:
    """Returns the reason for a refusal as a phrase that fits into a line."""
    return refused.message.rstrip(".")
