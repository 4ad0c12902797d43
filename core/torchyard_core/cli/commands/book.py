"""`torchyard book`: books GPUs for a period."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from torchyard_core.booking.model import Draft
from torchyard_core.booking.recurrence import has_end
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.search.slot_search import Fit
from torchyard_core.booking.slots import parse_slots
from torchyard_core.cli.calendar_sync_messages import add_nodes, book_gpus, mirror_bookings
from torchyard_core.cli.context import command_context
from torchyard_core.cli.output import Json, print_json, remark, say
from torchyard_core.cli.views.booking_tables import answering_clashes, book_command, booking_json, say_each, times, why
from torchyard_core.errors import UsageError
from torchyard_core.formatting import full_span

Zone = Annotated[str | None, typer.Option(help="Zone of the times, like Europe/Berlin [default: yours].")]


def book(
    context: typer.Context,
    gpus: Annotated[
        list[str],
        typer.Argument(
            metavar="GPUS",
            help="gpu-b:0-3, gpu-b:*, big-cpu:cpu, UUIDs, or nodes of a cluster: hpc:n7.",
            show_default=False,
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="Its end: 17:00, +4h (from its start), 2026-11-23 09:00, RFC 3339.")],
    from_: Annotated[str, typer.Option("--from", help="Its start: now, tomorrow 9, 2026-11-23 09:00, +30m.")] = "now",
    title: Annotated[str, typer.Option(help="What it is for, in a word or two.")] = "",
    purpose: Annotated[str, typer.Option(help="More about it.")] = "",
    repeat: Annotated[
        str, typer.Option(help="RFC 5545 rule, expanded in the zone: FREQ=WEEKLY;BYDAY=MO,WE;COUNT=8.")
    ] = "",
    free_ones: Annotated[
        bool, typer.Option("--free-ones", help="With --repeat: book the free occurrences, and list the others.")
    ] = False,
    zone: Zone = None,
    stop_at_end: Annotated[
        bool, typer.Option("--stop-at-end", help="Stop its run at its end, even if no desktop follows it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Book GPUs for a period: all of them, or none.

    If a GPU is already booked, prints the booking and the command that books the nearest free slot.

    Exit code 1: the GPUs cannot be booked, and nothing was changed. 3: the calendar's database does not answer.

    Example: torchyard book gpu-b:2-5 --from "tomorrow 9" --to 17:00 --title digits
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    if free_ones and not repeat:
        raise UsageError("--free-ones is for bookings that repeat.", code="usage", hint="Add --repeat FREQ=WEEKLY.")
    store = chosen.calendar().store()
    booking = book_gpus(chosen, store)
    add_nodes(chosen, store, gpus)
    slots = booking.slots()
    start, end = times(from_, to, where, store.now())
    wanted = tuple(slot.id for slot in parse_slots(" ".join(gpus), slots))
    name = title.strip() or f"{store.person}'s booking"
    draft = Draft(name, wanted, start, end, where, purpose, stop_at_end=stop_at_end)
    given = "".join(f" --{name} {shlex.quote(text)}" for name, text in (("title", title), ("purpose", purpose)) if text)
    given += " --stop-at-end" * stop_at_end

    def instead(fit: Fit) -> str:
        return book_command(fit, slots, where, chosen.zone()) + given

    with answering_clashes(slots, instead, as_json=as_json):
        made = booking.book(draft, repeat, free_ones=free_ones)
    done = mirror_bookings(chosen, store, made.booked, before={})
    exclusive = frozenset().union(*(result.exclusive for result in done)) if done else None
    if not repeat:
        (new,) = made.booked
        if as_json:
            print_json(booking_json(new, slots, exclusive))
        else:
            say_each("Booked", made.booked, slots, where)
        return
    missed = [
        {
            "start": f"{one.interval.start:%Y-%m-%dT%H:%M:%SZ}",
            "end": f"{one.interval.end:%Y-%m-%dT%H:%M:%SZ}",
            "error": one.why.to_json(),
        }
        for one in made.missed
    ]
    if as_json:
        booked = [booking_json(booking, slots, exclusive) for booking in made.booked]
        print_json({"series_id": made.series_id or None, "booked": booked, "missed": missed})
    else:
        say_each("Booked", made.booked, slots, where)
        for one in made.missed:
            kind = "taken" if isinstance(one.why, Clash) else "refused"
            remark(f"{kind}: {full_span(one.interval.start, one.interval.end, where)}: {why(one.why)}")
        say(f"{len(made.booked)} booked, {len(made.missed)} not.")
        if not has_end(repeat):
            remark("The rule has neither COUNT nor UNTIL: these are all that can be booked by now.")
    if not made.booked:
        raise typer.Exit(1)
