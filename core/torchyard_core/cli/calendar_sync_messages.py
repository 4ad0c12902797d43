"""Synchronisation of the calendar by commands, with messages on stderr about changes and outdated bookings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchyard_core.booking.intervals import Interval, subtract
from torchyard_core.booking.model import Booking, is_of_cluster
from torchyard_core.booking.sync.cached_calendar import View, age
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.output import remark
from torchyard_core.cli.views.booking_tables import booked_line
from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import until

if TYPE_CHECKING:
    from torchyard_core.app.book_gpus import BookGpus
    from torchyard_core.app.sync_calendar import CalendarSync
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.booking.sync.cached_calendar import Calendar
    from torchyard_core.engines.slurm.reservation_mirror import Mirrored
    from torchyard_core.fleet.fleet import Fleet


def sync_calendar(chosen: CommandContext, fleet: Fleet, calendar: Calendar | None = None) -> None:
    """Synchronises the calendar, if there is one, with the connected hosts, and prints the changes.

    An error of the synchronisation is printed but does not cause the command to fail, since the next command
    synchronises again.
    """
    calendar = calendar or chosen.calendar()
    if not calendar.has_begun:
        return
    from torchyard_core.app.sync_calendar import SyncCalendar

    try:
        store = calendar.store()
        done = SyncCalendar(chosen.home, fleet).run(store)
        if done.run_ended or done.released or done.served or done.soon_idle:
            _print_changes(chosen, store, done)
    except TorchyardError as error:
        remark(f"torchyard: the calendar was not synchronised: {error.sentence()}")
    except Exception as error:  # A faulty row in the calendar must not cause a command about hosts or runs to fail.
        remark(f"torchyard: the calendar was not synchronised: {type(error).__name__}: {error}")


def _print_changes(chosen: CommandContext, store: BookingStore, done: CalendarSync) -> None:
    slots, zone = store.slots(), chosen.zone()
    for one in done.run_ended:
        kept = "kept after the failure" if one.is_live else str(one.state)
        remark(f"Its run has ended, and the booking is {kept}: {booked_line(one, slots, zone)}.")
    for one in done.released:
        remark(f"Released because it was idle: {one.owner}'s {booked_line(one, slots, zone)}.")
    for one in done.served:
        remark(f"Booked for {one.owner}, who waited: {booked_line(one, slots, zone)}.")
    for one, frees_at in done.soon_idle:
        when = until(store.now(), frees_at, zone)
        remark(f"Your booking is idle and will be released at {when}: {booked_line(one, slots, zone)}.")


def add_nodes(chosen: CommandContext, store: BookingStore, words: Sequence[str]) -> None:
    """Adds the nodes of the clusters that are named in `words` to the calendar.

    Contacts no host if `words` names no cluster.
    """
    clusters = {cluster.name for cluster in chosen.inventory().clusters}
    if any(part in clusters for text in words for part in re.split(r"[:,\s]+", text)):
        from torchyard_core.app.cluster_bookings import ClusterBookings

        with chosen.fleet(chosen.inventory().hosts) as fleet:
            ClusterBookings(chosen.desktop(fleet), store).add_nodes(words)


def mirror_bookings(
    chosen: CommandContext,
    store: BookingStore,
    bookings: Sequence[Booking],
    before: Mapping[str, Booking] | None = None,
) -> list[Mirrored]:
    """Mirrors bookings of cluster nodes as Slurm reservations, and prints errors.

    Contacts no host if the bookings have no nodes of clusters.

    Args:
        before: The bookings before the change, by ID, or {} for new bookings. If `before` is given and Slurm refuses a
            reservation, the change is undone and RunFailed is raised. By default, refusals are only printed.
    """
    if not any(is_of_cluster(gpu) for booking in bookings for gpu in booking.gpus):
        return []
    from torchyard_core.app.cluster_bookings import ClusterBookings

    with chosen.fleet(chosen.inventory().hosts) as fleet:
        mirror = ClusterBookings(chosen.desktop(fleet), store)
        done, errors = mirror.of(bookings) if before is None else mirror.settle(before, bookings)
    for error in errors:
        remark(f"torchyard: the reservations in Slurm were not changed: {error.sentence()}")
    for result in done:
        for booking_id, problem in result.problems.items():
            remark(f"torchyard: {result.cluster} has no reservation for {booking_id}: {problem.sentence()}")
        for booking in result.deleted:
            remark(f"{booking.title!r} is no longer booked: its reservation was deleted in Slurm.")
        if not result.may_reserve:
            remark(
                f"{result.cluster} lets only its operators reserve nodes, so these bookings are not exclusive: "
                "`torchyard run --booking` gives a run their time as its earliest start."
            )
    return done


def book_gpus(chosen: CommandContext, store: BookingStore) -> BookGpus:
    """Returns the use case that books this fleet's GPUs.

    If the fleet file is invalid, a message is printed, and the use case adds no GPUs to the calendar.
    """
    from torchyard_core.app.book_gpus import BookGpus

    try:
        return BookGpus(store, chosen.known(chosen.inventory()))
    except TorchyardError as error:
        remark(f"torchyard: {error.sentence()}")
        return BookGpus(store)


def print_age(view: View, asked: Interval | None = None) -> None:
    """Prints why a view of the calendar is not current, how old it is, and which period it covers."""
    if view.is_live:
        return
    known = age(view, datetime.now(UTC)) or "no copy of the calendar is stored here"
    remark(f"torchyard: {view.why} The bookings are shown {known}." if view.as_of else f"torchyard: {view.why}")
    if asked is not None and view.known is not None and subtract([asked], [view.known]):
        remark(f"No bookings are known before {view.known.start:%Y-%m-%d} or after {view.known.end:%Y-%m-%d}.")
