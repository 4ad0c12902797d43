"""What commands about bookings print of them, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from torchyard_core.booking.conflict import fit_to_json, span
from torchyard_core.booking.find_slot import Fit
from torchyard_core.booking.model import Booking, Slot, rfc3339
from torchyard_core.booking.naming import name_slots
from torchyard_core.booking.refusals import Clash, Refused
from torchyard_core.booking.waitlist import Waiting, wish_to_json
from torchyard_core.booking.words import command_length, command_time, hours_of, until
from torchyard_core.booking.zones import moment, zone_of
from torchyard_core.cli.output import error_as_json, print_error, print_json_line, table
from torchyard_core.errors import TorchyardError

HEADINGS = ("ID", "WHO", "TITLE", "GPUS", "FROM", "TO", "STATE")


def row(booking: Booking, slots: Sequence[Slot], zone: str) -> list[str]:
    """Cells for HEADINGS."""
    start = booking.start.astimezone(zone_of(zone))
    return [
        booking.id,
        booking.owner,
        booking.title,
        name_slots(booking.gpus, slots),
        f"{start:%a %Y-%m-%d %H:%M}",
        until(booking.start, booking.until, zone),
        str(booking.state),
    ]


def print_bookings(bookings: Iterable[Booking], slots: Sequence[Slot], zone: str) -> None:
    table(HEADINGS, [row(booking, slots, zone) for booking in bookings])


def booking_json(booking: Booking, slots: Sequence[Slot]) -> dict[str, Any]:
    """The booking with the names of its GPUs."""
    return {**booking.to_json(), "names": name_slots(booking.gpus, slots)}


def booked_line(booking: Booking, slots: Sequence[Slot], zone: str) -> str:
    """`b1f… booked: gpu-b:2-5 from Mon 23 Nov 09:00 to 17:00 (Europe/Berlin)`."""
    return f"{booking.id}: {name_slots(booking.gpus, slots)} {span(booking.start, booking.end, zone)} ({zone})"


def waiting_json(one: Waiting) -> dict[str, Any]:
    return {
        "id": one.id,
        "owner": one.owner,
        "title": one.title,
        "wish": wish_to_json(one.wish),
        "zone": one.zone,
        "created": rfc3339(one.created),
        "state": one.state,
        "booking_id": one.booking_id,
    }


def book_command(fit: Fit, slots: Sequence[Slot], zone: str, usual: str) -> str:
    """The command that books a fit, with times of `zone`; `usual` is the one that is meant where none is named."""
    return f"torchyard book {_places(fit.gpus, slots)}{_when(fit, zone, usual)}"


def change_command(fit: Fit, booking: Booking, slots: Sequence[Slot], zone: str, usual: str) -> str:
    """The command that moves a booking that has not begun to a fit."""
    now = " --from now"  # else its end would count from its old start
    moved = "" if set(fit.gpus) == set(booking.gpus) else f' --gpus "{_places(fit.gpus, slots)}"'
    return f"torchyard bookings change {booking.id}{moved}{_when(fit, zone, usual, now)}"


def _places(gpus: Sequence[str], slots: Sequence[Slot]) -> str:
    return name_slots(gpus, slots).replace(", ", " ")


def _when(fit: Fit, zone: str, usual: str, now: str = "") -> str:
    """The options that say so; `now` is the one for a fit that begins at once."""
    at_once = fit.start - datetime.now(UTC) < timedelta(minutes=1)
    begin = now if at_once else f' --from "{command_time(fit.start, zone)}"'
    where = "" if zone == usual else f" --zone {zone}"
    return f"{begin} --to +{command_length(fit.end - fit.start)}{where}"


def fit_json(fit: Fit, slots: Sequence[Slot], zone: str, usual: str) -> dict[str, Any]:
    return {**fit_to_json(fit, slots), "command": book_command(fit, slots, zone, usual)}


def fit_words(fit: Fit, slots: Sequence[Slot], zone: str) -> str:
    length = hours_of(fit.end - fit.start)
    return f"{name_slots(fit.gpus, slots)} {span(fit.start, fit.end, zone)} ({length})"


def times(start: str, end: str, zone: str, now: datetime) -> tuple[datetime, datetime]:
    """`--from` and `--to`. A length (`+4h`) counts from the start, and a bare time of day is the first after it."""
    begin = moment(start, zone, now)
    finish = moment(end, zone, begin)
    has_day = "-" in end or end.strip().startswith(("to", "now", "+"))
    while not has_day and finish <= begin and finish > begin - timedelta(days=1):
        # 22:00 to 06:00: the clock is read on the day of the start, and the night is over on the next.
        finish = moment(f"{(begin.astimezone(zone_of(zone)) + timedelta(days=1)):%Y-%m-%d} {end}", zone, begin)
    return begin, finish


@contextmanager
def answering_clashes(slots: Sequence[Slot], command: Callable[[Fit], str], *, as_json: bool) -> Iterator[None]:
    """A clash is an answer: its sentence with the `command` that takes the nearest instead, and in JSON all of it."""
    try:
        yield
    except Clash as clash:
        hint = clash.hint
        if clash.conflict.nearest:
            hint += f" The first one: `{command(clash.conflict.nearest[0])}`."
        told = TorchyardError(clash.message, code=clash.code, hint=hint)
        if not as_json:
            print_error(told, as_json=False)
        else:
            print_json_line({"error": {**error_as_json(told), "conflict": clash.conflict.to_json(slots)}})
            typer.echo(f"torchyard: {told.sentence()}", err=True)
        raise typer.Exit(clash.exit_code) from None


def why(refused: Refused) -> str:
    """Why one of several was not booked, on a line."""
    return refused.message.rstrip(".")
