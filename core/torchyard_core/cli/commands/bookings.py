"""`torchyard bookings`: the calendar of the team's GPUs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_core.atomic_write import write_atomically
from torchyard_core.booking.change_history import headline, lines
from torchyard_core.booking.errors import BadCalendar, StoreUnavailable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import NODE_PREFIX, Booking, Slot, is_of_cluster, rfc3339
from torchyard_core.booking.search.slot_search import Fit
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.booking.sync.cached_calendar import View
from torchyard_core.booking.time_parser import end_moment, length, moment
from torchyard_core.cli.booking_lookup import booking_of, find_booking
from torchyard_core.cli.calendar_sync_messages import book_gpus, mirror_bookings, print_age
from torchyard_core.cli.commands import booking_admin, booking_search
from torchyard_core.cli.commands.book import Zone
from torchyard_core.cli.context import CommandContext, Yes, command_context
from torchyard_core.cli.output import Json, print_document, print_json, remark, say, table
from torchyard_core.cli.views.booking_tables import (
    answering_clashes,
    book_command,
    booked_line,
    booking_json,
    change_command,
    print_bookings,
    say_each,
    times,
    why,
)
from torchyard_core.errors import AgentRefused, HostError, UsageError
from torchyard_core.formatting import counted, wall_clock

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar

app = typer.Typer(
    help="The calendar of the team's GPUs: list, show, change, release, find a slot, usage, rules, team database.",
    no_args_is_help=True,
)
booking_search.add_to(app)
booking_admin.add_to(app)

ID = Annotated[
    str, typer.Argument(metavar="ID", help="A booking's ID, or its beginning: `bookings list`.", show_default=False)
]
Since = Annotated[str, typer.Option("--from", help="From when on.")]
_EVER = (datetime(1970, 1, 2, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC))
AROUND = timedelta(days=400)
"""How far before and after now `show` searches for a booking while the database is unavailable."""


@app.command("list")
def list_bookings(
    context: typer.Context,
    since: Since = "now",
    until: Annotated[str, typer.Option("--to", help="Until when; a length counts from the start.")] = "+14d",
    mine: Annotated[bool, typer.Option("--mine", help="Only your own.")] = False,
    person: Annotated[str | None, typer.Option(help="Only this person's.")] = None,
    gpus: Annotated[str, typer.Option(help="Only those of these GPUs: gpu-b:0-3.")] = "",
    title: Annotated[str, typer.Option(help="Only those with this in their title.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Include those that were released or cancelled.")] = False,
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Also the running jobs and reservations of this cluster.")
    ] = None,
    zone: Zone = None,
    as_json: Json = False,
) -> None:
    """List bookings. While the database is unavailable, lists the last known bookings with their age (exit code 3).

    Exit code 3 also with --on, if the cluster does not answer: the bookings are listed without its jobs.

    Example: torchyard bookings list --mine --to +30d
    """
    if mine and person is not None:
        raise UsageError("--mine and --person both say whose.", code="usage", hint="Give one of them.")
    chosen = command_context(context)
    where = chosen.zone(zone)
    calendar = chosen.calendar()
    asked = _asked(since, until, where)
    owner = calendar.person if mine else person
    cluster = None
    if on is not None:
        if calendar.has_begun:
            with suppress(StoreUnavailable):  # The view below reports that the database is unavailable.
                _mirror(chosen, calendar.store(), on)
        cluster = _read_cluster(chosen, on, where)
    view = calendar.view_of(owner, asked.start, asked.end)
    exclusive = None
    if cluster is not None:
        is_team = view.is_live and not calendar.is_private
        cluster = cluster.seen_by(calendar.store().person if is_team else calendar.person)
        exclusive = frozenset(one.id for one in view.bookings if cluster.has_reservation(one.id))
        view = _with_cluster(view, cluster, owner, asked)
    wanted = {slot.id for slot in parse_slots(gpus, view.slots)} if gpus else set()
    found = [
        one
        for one in view.bookings
        if (everything or one.is_live) and (not wanted or wanted & set(one.gpus)) and title.lower() in one.title.lower()
    ]
    if as_json:
        print_json([_listed_json(one, view, cluster, exclusive) for one in found])
    elif found:
        print_bookings(found, view.slots, where, exclusive)
    else:
        say("Nothing is booked then." if view.is_live else "Nothing is known to be booked then.")
    print_age(view, asked)
    if not view.is_live or (on is not None and cluster is None):
        raise typer.Exit(3)
    if calendar.is_private and not as_json:
        remark("This calendar is only on this computer. `torchyard bookings setup-team --help` shares one.")


def _mirror(chosen: CommandContext, store: BookingStore, name: str) -> None:
    """Mirrors the user's bookings of a cluster's nodes as Slurm reservations, so that the list shows their state."""
    own = [one for one in store.bookings(*_EVER) if one.owner == store.person]
    prefix = f"{NODE_PREFIX}{name}/"
    mirror_bookings(chosen, store, [one for one in own if any(gpu.startswith(prefix) for gpu in one.gpus)])


def _read_cluster(chosen: CommandContext, name: str, zone: str) -> ClusterCalendar | None:
    """Returns the jobs and reservations of a cluster, and prints when they were read.

    If the cluster does not answer, prints the error and returns None.
    """
    from torchyard_core.engines.registry import read_cluster_calendar

    try:
        with chosen.fleet(chosen.inventory().hosts) as fleet:
            found = read_cluster_calendar(fleet, name, install=True)
    except (HostError, AgentRefused) as error:
        remark(f"torchyard: the jobs and reservations of {name} are not listed: {error.sentence()}")
        return None
    remark(f"The jobs of {name} are those of {wall_clock(found.as_of, zone, '%H:%M:%S')} ({zone}).")
    return found


def _listed_json(
    booking: Booking, view: View, cluster: ClusterCalendar | None, exclusive: Collection[str] | None
) -> dict[str, Any]:
    """Returns a booking as JSON. For a job or reservation of a cluster, `as_of` is the time at which it was read."""
    found = booking_json(booking, view.slots, exclusive)
    if cluster is not None and is_of_cluster(booking.id):
        found["as_of"] = rfc3339(cluster.as_of)
    return found


def _with_cluster(view: View, found: ClusterCalendar, owner: str | None, asked: Interval) -> View:
    """Returns the view with the cluster's jobs and reservations in the interval `asked` added.

    If `owner` is not None, only the jobs and reservations of this owner are added.
    """
    mirrored = {one.id for one in view.bookings}
    there = [
        one
        for one in found.without(mirrored)
        if one.start < asked.end and asked.start < one.until and owner in (None, one.owner)
    ]
    bookings = sorted((*view.bookings, *there), key=lambda one: one.start)
    return replace(view, bookings=tuple(bookings), slots=(*view.slots, *found.slots))


def _asked(since: str, until: str, zone: str) -> Interval:
    found = Interval(*times(since, until, zone, datetime.now(UTC)))
    if found.is_empty:
        raise UsageError("--to is not after --from.", code="end_before_start", hint="Give a later end, or +14d.")
    return found


@app.command("show")
def show(context: typer.Context, booking_id: ID, zone: Zone = None, as_json: Json = False) -> None:
    """Show the details of a booking.

    Example: torchyard bookings show b3f0
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    calendar = chosen.calendar()
    now = datetime.now(UTC)
    try:
        found = find_booking(chosen, booking_id)
        view = View((found,), calendar.store().slots(), now, True)
    except StoreUnavailable:
        view = calendar.view(now - AROUND, now + AROUND)
    booking = booking_of(view.bookings, booking_id)
    if as_json:
        print_json(booking_json(booking, view.slots))
    else:
        say(booked_line(booking, view.slots, where))
        say(f"  {booking.title}, {booking.owner}'s, {booking.state}")
        for label, value in (
            ("purpose", booking.purpose),
            ("run", booking.run_id),
            ("series", booking.series_id),
            ("at its end", "its run is stopped" if booking.stop_at_end else ""),
        ):
            if value:
                say(f"  {label}: {value}")
    print_age(view)
    if not view.is_live:
        raise typer.Exit(3)


@app.command("history")
def history(context: typer.Context, booking_id: ID, zone: Zone = None, as_json: Json = False) -> None:
    """Show the changes to a booking: the user, the desktop, the time, and the values before and after.

    Example: torchyard bookings history b3f0
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    found = find_booking(chosen, booking_id)
    store = chosen.calendar().store()
    changes, slots = store.history(found.id), store.slots()
    if as_json:
        print_json([change.to_json() for change in changes])
        return
    for change in changes:
        say(headline(change, where))
        for line in lines(change, slots, where):
            say(f"  {line}")
    if not changes:
        say("Nothing is known of its history: it was made by an older Torchyard, and not changed since.")


@app.command("cancel")
def cancel(
    context: typer.Context,
    booking_id: ID,
    series: Annotated[
        bool, typer.Option("--series", help="Cancel all bookings of its series that have not begun.")
    ] = False,
    following: Annotated[
        bool, typer.Option("--following", help="Cancel this booking and the later ones of its series.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel a booking. A booking that has begun is released, and its past is kept. The waitlist is processed.

    Example: torchyard bookings cancel b3f0
    """
    chosen = command_context(context, yes=yes)
    store = chosen.calendar().store()
    booking = find_booking(chosen, booking_id)
    _of_a_series(booking, series=series, following=following)
    slots = store.slots()
    if series or following:
        since = f" from {wall_clock(booking.start, chosen.zone(), '%a %Y-%m-%d')} on" if following else ""
        chosen.confirm_or_exit(f"Cancel all of the series {booking.title!r} that has not begun{since}?")
        gone = store.cancel_series(str(booking.series_id), booking.start if following else None)
    else:
        gone = (store.cancel(booking.id),)
    _print_changed(chosen, gone, slots, as_json=as_json)
    mirror_bookings(chosen, store, gone)
    _serve_waiting(chosen, store)


def _of_a_series(booking: Booking, *, series: bool, following: bool) -> None:
    if series and following:
        raise UsageError("--series and --following both say which.", code="usage", hint="Give one of them.")
    if (series or following) and booking.series_id is None:
        option = "--series" if series else "--following"
        raise UsageError(f"{booking.id} belongs to no series.", code="no_series", hint=f"Leave {option} out.")


@app.command("release")
def release(context: typer.Context, booking_id: ID, as_json: Json = False) -> None:
    """Release the GPUs of a running booking now. The waitlist is processed.

    Example: torchyard bookings release b3f0
    """
    chosen = command_context(context)
    store = chosen.calendar().store()
    gone = store.release(find_booking(chosen, booking_id).id)
    _print_changed(chosen, (gone,), store.slots(), as_json=as_json)
    mirror_bookings(chosen, store, (gone,))
    _serve_waiting(chosen, store)


def _serve_waiting(chosen: CommandContext, store: BookingStore) -> None:
    """Books GPUs that have become free for the waitlist, and prints the new bookings."""
    for served in store.serve_waiting():
        remark(f"Booked for {served.owner} from the waitlist: {booked_line(served, store.slots(), chosen.zone())}.")


def _print_changed(chosen: CommandContext, gone: tuple[Booking, ...], slots: Sequence[Slot], *, as_json: bool) -> None:
    if as_json:
        print_json([booking_json(one, slots) for one in gone])
        return
    for one in gone:
        say(f"{str(one.state).capitalize()} {booked_line(one, slots, chosen.zone())}.")
    if not gone:
        say("There is nothing left to cancel.")


@app.command("change")
def change(
    context: typer.Context,
    booking_id: ID,
    start: Annotated[str, typer.Option("--from", help="Another start (only before it has begun).")] = "",
    end: Annotated[str, typer.Option("--to", help="Another end; +2h counts from its start.")] = "",
    extend: Annotated[str, typer.Option(help="Extend it by this length: 2h, 30m.")] = "",
    gpus: Annotated[str, typer.Option(help="Other GPUs (only before it has begun).")] = "",
    title: Annotated[str | None, typer.Option(help="Another title.")] = None,
    purpose: Annotated[str | None, typer.Option(help="Another purpose.")] = None,
    stop_at_end: Annotated[
        bool | None, typer.Option("--stop-at-end/--run-on", help="Whether its run is stopped at its end.")
    ] = None,
    series: Annotated[
        bool, typer.Option("--series", help="Change all bookings of its series that have not begun.")
    ] = False,
    following: Annotated[
        bool, typer.Option("--following", help="Change this booking and the later ones of its series")
    ] = False,
    zone: Zone = None,
    as_json: Json = False,
) -> None:
    """Move, shorten, extend or rename a booking as a whole. A running booking keeps its start and its GPUs.

    Example: torchyard bookings change b3f0 --extend 2h
    """
    chosen = command_context(context)
    where = chosen.zone(zone)
    if end and extend:
        raise UsageError("--to and --extend both say when it ends.", code="usage", hint="Give one of them.")
    store = chosen.calendar().store()
    slots_of_fleet = book_gpus(chosen, store).slots
    booking = find_booking(chosen, booking_id)
    _of_a_series(booking, series=series, following=following)
    slots = slots_of_fleet()
    begin = moment(start, where, store.now()) if start else None
    finish = booking.end + length(extend) if extend else None
    if end:
        finish = end_moment(end, begin or booking.start, where, store.now())
    elif begin is not None and finish is None:
        finish = begin + (booking.end - booking.start)  # If only the start changes, the booking keeps its length.
    wanted = tuple(slot.id for slot in parse_slots(gpus, slots)) if gpus else None
    changes: dict[str, Any] = {"start": begin, "end": finish, "gpus": wanted}
    changes |= {"title": title, "purpose": purpose, "stop_at_end": stop_at_end}
    if all(value is None for value in changes.values()):
        raise UsageError("nothing is to be changed.", code="usage", hint="Say what: --extend 2h, --to 18:00, --gpus …")

    def instead(fit: Fit) -> str:
        if booking.start <= store.now():  # A running booking cannot be moved, so a new booking is proposed.
            return book_command(fit, slots, where, chosen.zone())
        return change_command(fit, booking, slots, where, chosen.zone())

    if series or following:
        _, before = store.series(str(booking.series_id))
        all_changed = store.change_series(booking.id, everything=series, **changes)
        mirror_bookings(chosen, store, all_changed, before={one.id: one for one in before})
        if as_json:
            print_json([booking_json(one, slots) for one in all_changed])
        else:
            say_each("Changed", all_changed, slots, where)
        _serve_waiting(chosen, store)
        return
    with answering_clashes(slots, instead, as_json=as_json):
        changed = store.change(booking.id, **changes)
    mirror_bookings(chosen, store, (changed,), before={booking.id: booking})
    if as_json:
        print_json(booking_json(changed, slots))
    else:
        say_each("Changed", [changed], slots, where)
    _serve_waiting(chosen, store)


@app.command("export")
def export(
    context: typer.Context,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The .ics file [default: stdout].")] = None,
    everybody: Annotated[bool, typer.Option("--everybody", help="All bookings, not only yours.")] = False,
    as_json: Json = False,
) -> None:
    """Export your bookings as an iCalendar file (.ics).

    Example: torchyard bookings export -o gpus.ics
    """
    from torchyard_core.booking.ics import EVER, export_ics

    chosen = command_context(context)
    store = chosen.calendar().store()
    owner = None if everybody else store.person
    found = store.bookings(*EVER, owner=owner)
    text = export_ics(found, store.slots())
    if output is not None:
        write_atomically(output, text)
    if as_json:
        print_json({"bookings": len(found), "file": str(output) if output else None, "ics": None if output else text})
    elif output is None:
        print_document(text)
    else:
        say(f"{counted(len(found), 'booking')} written to {output}.")


@app.command("import")
def import_ics(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The .ics file; - reads it from stdin.", show_default=False)
    ],
    gpus: Annotated[str, typer.Option(help="GPUs of events that name none.")] = "",
    until: Annotated[str, typer.Option("--to", help="Last day up to which repeated events are imported.")] = "+60d",
    preview: Annotated[bool, typer.Option("--preview", help="Only show the preview.")] = False,
    zone: Zone = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Book the events of an iCalendar file (.ics) after a preview.

    Exit code 1: some events could not be read or booked.

    Example: torchyard bookings import holidays.ics --gpus gpu-b:0-1 --preview
    """
    from torchyard_core.booking.ics import read_ics

    chosen = command_context(context, yes=yes)
    where = chosen.zone(zone)
    store = chosen.calendar().store()
    booking = book_gpus(chosen, store)
    slots = booking.slots()
    now = store.now()
    last = times("now", until, where, now)[1]
    others = tuple(slot.id for slot in parse_slots(gpus, slots)) if gpus else ()
    try:
        text = file.read_bytes() if str(file) != "-" else sys.stdin.buffer.read()
    except OSError as error:
        raise BadCalendar(f"{file} cannot be read: {error.strerror}", hint="Is the name right?") from None
    read = read_ics(text, zone=where, since=now, until=last, slots=slots, gpus=others)
    seen = store.preview(read.drafts)
    for line in read.remarks:
        remark(line)
    events = [
        {
            "title": one.draft.title,
            "names": format_slots(one.draft.gpus, slots),
            "start": rfc3339(one.draft.start),
            "end": rfc3339(one.draft.end),
            "verdict": one.verdict,
            "why": one.why.message if one.why else None,
        }
        for one in seen
    ]
    if not as_json and events:
        columns = ("title", "names", "start", "end", "verdict", "why")
        rows = [[str(line[key] or "") for key in columns] for line in events]
        table(("TITLE", "GPUS", "FROM", "TO", "WOULD BE", "WHY"), rows)
    new = [one.draft for one in seen if one.verdict == "new"]
    if preview or not new:
        if as_json:
            print_json({"preview": events, "remarks": list(read.remarks), "booked": []})
        elif not new:
            say("It has no new events to book.")
        if read.unread and not preview:
            raise typer.Exit(1)
        return
    chosen.confirm_or_exit(f"Book {len(new)} of {len(seen)} events?")
    booked, refused = booking.book_each(new)
    for draft, refusal in refused:
        remark(f"not booked: {draft.title}: {why(refusal)}")
    if as_json:
        found = [booking_json(one, slots) for one in booked]
        print_json({"preview": events, "remarks": list(read.remarks), "booked": found})
    else:
        say_each("Booked", booked, slots, where)
    if read.unread or len(booked) < len([one for one in seen if one.verdict != "there"]):
        raise typer.Exit(1)
