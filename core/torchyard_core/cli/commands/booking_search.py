"""`torchyard bookings find | wait | waitlist | usage`: free slots, the waitlist, and the usage report."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.booking.time_parser import length, moment
from torchyard_core.booking.usage_report import By, to_csv
from torchyard_core.cli.calendar_sync_messages import add_nodes, book_gpus
from torchyard_core.cli.commands.book import Zone
from torchyard_core.cli.context import CommandContext, command_context
from torchyard_core.cli.output import Json, print_document, print_json, remark, say, table
from torchyard_core.cli.views.booking_tables import book_command, fit_json, times, waiting_json
from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import format_hours, full_span
from torchyard_core.next_steps import JoinWaitlist

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

Count = Annotated[
    int,
    typer.Argument(
        metavar="COUNT", min=1, help="How many GPUs; with --host CLUSTER, how many nodes.", show_default=False
    ),
]
Length = Annotated[str, typer.Option("--for", help="For how long: 6h, 90m, 2d.")]
From = Annotated[str, typer.Option("--from", help="Not before: now, tomorrow 9, 2026-11-23 09:00.")]
To = Annotated[str, typer.Option("--to", help="It must have ended by then [default: any time].")]
Memory = Annotated[float, typer.Option(help="Only GPUs with at least this much memory, in GB.")]
Model = Annotated[str, typer.Option(help="GPUs with this in their name: H100.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="Only on this host, or nodes of this cluster; repeatable.")
]
Gpus = Annotated[str, typer.Option(help="Only among these: gpu-b:0-3.")]
Spread = Annotated[bool, typer.Option("--any-hosts", help="Allow several hosts [default: all on one].")]


def find(
    context: typer.Context,
    count: Count,
    lasts: Length,
    earliest: From = "now",
    latest: To = "",
    min_memory_gb: Memory = 0,
    model: Model = "",
    host: Hosts = None,
    gpus: Gpus = "",
    any_hosts: Spread = False,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of slots.")] = 5,
    zone: Zone = None,
    as_json: Json = False,
) -> None:
    """Find free slots for a number of GPUs, with the command that books each slot.

    With --host CLUSTER, it finds nodes that are not booked. Jobs and reservations of Slurm are not considered.

    Exit code 1: there is no free slot. The reason is printed if rules, quota or fleet never allow one.

    Example: torchyard bookings find 4 --for 6h --min-memory-gb 40 --from "tomorrow 9"
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    store = chosen.calendar().store()
    wish = _wish(chosen, store, where, count, lasts, earliest, latest, min_memory_gb, model, host, gpus, any_hosts)
    slots = store.slots()
    fits = store.find(wish, limit, where)
    if not fits:
        raise TorchyardError(
            "no such slot is free in that time", code="nothing_free", hint=JoinWaitlist(str(count), lasts)
        )
    usual = chosen.zone()
    clusters = sorted({slot.host for slot in slots if slot.node and any(slot.id in fit.gpus for fit in fits)})
    for cluster in clusters:
        remark(f"Only bookings are considered: `torchyard bookings list --on {cluster}` lists Slurm's jobs.")
    if as_json:
        print_json([fit_json(fit, slots, where, usual) for fit in fits])
        return
    for number, fit in enumerate(fits, 1):
        say(f"{number}  {format_slots(fit.gpus, slots)} {full_span(fit.start, fit.end, where)}")
        say(f"   {book_command(fit, slots, where, usual)}")


def wait(
    context: typer.Context,
    count: Count,
    lasts: Length,
    earliest: From = "now",
    latest: To = "",
    min_memory_gb: Memory = 0,
    model: Model = "",
    host: Hosts = None,
    gpus: Gpus = "",
    any_hosts: Spread = False,
    title: Annotated[str, typer.Option(help="What it is for.")] = "",
    zone: Zone = None,
    as_json: Json = False,
) -> None:
    """Join the waitlist. GPUs that become free are booked for its entries in order.

    Exit code 1: the request can never be met. The reason is printed, and no entry is added.

    Example: torchyard bookings wait 4 --for 6h --to "2026-11-27 18:00" --title digits
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    store = chosen.calendar().store()
    wish = _wish(chosen, store, where, count, lasts, earliest, latest, min_memory_gb, model, host, gpus, any_hosts)
    one = store.wait(wish, title or f"{store.person}'s booking", where)
    served = [booking for booking in store.serve_waiting() if booking.owner == store.person]
    one = next((entry for entry in store.waiting(everything=True) if entry.id == one.id), one)
    if as_json:
        print_json(waiting_json(one))
        return
    say(f"You wait as {one.id}.")
    if one.booking_id:
        say(f"It is free already, and booked for you: {one.booking_id}.")
    for booking in served:
        if booking.id != one.booking_id:
            remark(f"Booked for you meanwhile: {booking.id} ({booking.title}).")


def waitlist(
    context: typer.Context,
    leave: Annotated[str, typer.Option(metavar="ID", help="Leave it: the ID of your entry.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Include entries that were served or withdrawn.")] = False,
    as_json: Json = False,
) -> None:
    """Show the waitlist in order, or leave it.

    Example: torchyard bookings waitlist --leave b3f01c
    """
    chosen = command_context(context)
    store = chosen.calendar().store()
    if leave:
        store.stop_waiting(leave)
        if not as_json:
            say(f"The waitlist entry {leave} was removed.")
    waiting = store.waiting(everything=everything)
    if as_json:
        print_json([waiting_json(one) for one in waiting])
    elif waiting:
        rows = [
            [one.id, one.owner, one.title, str(one.wish.count), format_hours(one.wish.length), one.state]
            for one in waiting
        ]
        table(("ID", "WHO", "TITLE", "GPUS", "FOR", "STATE"), rows)
    elif not leave:
        say("The waitlist is empty.")


def usage(
    context: typer.Context,
    since: Annotated[str, typer.Option("--from", help="Start of the period [default: 28 days ago].")] = "",
    until: Annotated[str, typer.Option("--to", help="Until when.")] = "now",
    by: Annotated[str, typer.Option(help="person, host or week.")] = "person",
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
    zone: Zone = None,
    as_json: Json = False,
) -> None:
    """Report GPU-hours: booked, used, booked but idle, and used without a booking.

    Example: torchyard bookings usage --by week --csv
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    store = chosen.calendar().store()
    now = store.now()
    last = moment(until, where, now)
    first = moment(since, where, now) if since else last - timedelta(days=28)
    kind: By = by  # type: ignore[assignment]  # The store refuses other values.
    rows = store.usage(first, last, kind, where)
    if as_json:
        print_json([row.__dict__ for row in rows])
    elif as_csv:
        print_document(to_csv(rows, kind))
    elif rows:
        cells = [
            [row.key, *(f"{hours:.1f}" for hours in (row.booked_h, row.used_h, row.idle_h, row.unbooked_h))]
            for row in rows
        ]
        table((by.upper(), "BOOKED", "USED", "IDLE", "UNBOOKED"), cells)
        say("GPU-hours.")
    else:
        say("Nothing was booked or used then.")


def _wish(
    chosen: CommandContext,
    store: BookingStore,
    zone: str,
    count: int,
    lasts: str,
    earliest: str,
    latest: str,
    min_memory_gb: float,
    model: str,
    hosts: list[str] | None,
    gpus: str,
    any_hosts: bool,
) -> Wish:
    booking = book_gpus(chosen, store)
    add_nodes(chosen, store, [*(hosts or ()), gpus])
    slots = booking.slots()
    for host in hosts or ():
        parse_slots(host, slots)  # For an unknown host, this call raises Refused with a similar name as a hint.
    now = store.now()
    first = moment(earliest, zone, now)
    return Wish(
        count=count,
        length=length(lasts),
        earliest=first,
        latest=times(earliest, latest, zone, now)[1] if latest else None,
        min_memory_gb=min_memory_gb,
        model=model,
        one_host=not any_hosts,
        hosts=tuple(hosts or ()),
        gpus=tuple(slot.id for slot in parse_slots(gpus, slots)) if gpus else (),
    )


def add_to(app: typer.Typer) -> None:
    """Registers this module's commands with the command group `app`."""
    app.command("find")(find)
    app.command("wait")(wait)
    app.command("waitlist")(waitlist)
    app.command("usage")(usage)
