"""Pure functions that determine which GPUs the calendar allows a launch to use, and which booking the run uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from torchyard_core.booking.model import Booking, cpu_slot, is_cpu_id
from torchyard_core.booking.search.conflict import Clashing
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import HostFacts


def slots_of_plan(planned: Plan, known: Sequence[HostFacts], catalogue: Iterable[str]) -> tuple[str, ...]:
    """Returns the slots that a plan uses: its GPUs, and the CPU slots of its hosts without GPUs.

    CPU slots that are not in `catalogue` are omitted.
    """
    in_calendar = set(catalogue)
    without_gpus = {host.name for host in known if host.checked and not host.gpus}
    gpus = {gpu.uuid for replica in planned.replicas for gpu in replica.gpus}
    cpus = {cpu_slot(host).id for host in planned.hosts if host in without_gpus}
    return tuple(sorted(gpus | (cpus & in_calendar)))


def slots_to_book(taken: Sequence[str]) -> tuple[str, ...]:
    """Returns the slots that a run books: its GPUs, or its CPU slots if it has no GPUs.

    The servers of a run may share a CPU host with other runs, so a run with GPUs does not book CPU slots.
    """
    gpus = tuple(slot for slot in taken if not is_cpu_id(slot))
    return gpus or tuple(taken)


def hosts_with_gpus(planned: Plan) -> tuple[str, ...]:
    """Returns the hosts on which a plan uses GPUs."""
    return tuple(dict.fromkeys(replica.host for replica in planned.replicas if replica.host and replica.gpus))


def first_bookings(bookings: Iterable[Booking], start: datetime, end: datetime) -> dict[str, Booking]:
    """Returns, for each slot that is booked between `start` and `end`, the first live booking in this time."""
    found: dict[str, Booking] = {}
    for booking in sorted(bookings, key=lambda one: (one.start, one.id)):
        if booking.is_live and booking.start < end and booking.end > start:
            for gpu in booking.gpus:
                found.setdefault(gpu, booking)
    return found


def clashing_bookings(taken: Sequence[str], booked: Mapping[str, Booking]) -> tuple[Clashing, ...]:
    """Groups the slots `taken` by booking. `booked` maps slot IDs to bookings; slots without a booking are omitted."""
    by_booking: dict[str, list[str]] = {}
    for slot in taken:
        if slot in booked:
            by_booking.setdefault(booked[slot].id, []).append(slot)
    bookings = {booking.id: booking for booking in booked.values()}
    return tuple(Clashing(bookings[key], tuple(slots)) for key, slots in by_booking.items())


def hosts_without_booked(known: Sequence[HostFacts], booked: Mapping[str, Booking]) -> tuple[HostFacts, ...]:
    """Returns the hosts with their booked GPUs marked as busy.

    If a host has no GPUs and its CPU slot is booked, its `booked_by` is set, so that no replica is placed on it.
    """
    left: list[HostFacts] = []
    for host in known:
        if not host.gpus and (whole := booked.get(cpu_slot(host.name).id)) is not None:
            left.append(replace(host, booked_by=whole.owner))
            continue
        users = {gpu.uuid: f"{booked[gpu.uuid].owner} (booked)" for gpu in host.gpus if gpu.uuid in booked}
        left.append(_with_busy(host, users))
    return tuple(left)


def hosts_without_closed(known: Sequence[HostFacts], gpus: Collection[str]) -> tuple[HostFacts, ...]:
    """Returns the hosts with `gpus` marked as busy. The team's rules do not allow the user to book these GPUs."""
    return tuple(
        _with_excluded(host, {gpu.uuid: "closed by the team's rules" for gpu in host.gpus if gpu.uuid in gpus})
        for host in known
    )


def hosts_limited_to(
    known: Sequence[HostFacts], slots: Iterable[str], booked: Mapping[str, Booking]
) -> tuple[HostFacts, ...]:
    """Returns the hosts with all GPUs outside `slots` marked as busy.

    If a host has no GPUs and its CPU slot is in `booked` but not in `slots`, its `booked_by` is set. If `slots` has
    only CPU slots, only the hosts of these slots are returned.
    """
    wanted = set(slots)
    if all(map(is_cpu_id, wanted)):
        return tuple(host for host in known if not host.gpus and cpu_slot(host.name).id in wanted)
    left: list[HostFacts] = []
    for host in known:
        slot = cpu_slot(host.name).id
        if not host.gpus and slot in booked and slot not in wanted:
            left.append(replace(host, booked_by=booked[slot].owner))
            continue
        outside = {gpu.uuid: "outside the booking" for gpu in host.gpus if gpu.uuid not in wanted}
        left.append(_with_excluded(host, outside))
    return tuple(left)


def holds_slots(booking: Booking, taken: Sequence[str]) -> bool:
    """Returns whether a booking contains every slot that must be booked for a run that uses the slots `taken`."""
    return set(slots_to_book(taken)) <= set(booking.gpus)


def own_bookings(bookings: Iterable[Booking], person: str, start: datetime) -> list[Booking]:
    """Returns the person's live bookings at the time `start`.

    Bookings without a run come first, then those with a run. Both are sorted by number of GPUs, then by start.
    """
    own = [one for one in bookings if one.owner == person and one.is_live and one.start <= start < one.end]
    return sorted(own, key=lambda one: (one.run_id is not None, len(one.gpus), one.start, one.id))


def keeps_until(booking: Booking, state: str, ended: datetime, keep: timedelta | None) -> datetime | None:
    """Returns the time until which a booking is kept after its run, or None if the booking is released.

    The booking is released unless the run failed. After a failed run, the booking is kept for the time `keep` after
    the end of the run, but not beyond its own end. If `keep` is None, the booking is kept until its end.
    """
    if state != "failed":
        return None
    return booking.end if keep is None else min(booking.end, ended + keep)


def moment_of(text: str) -> datetime | None:
    """Parses a time of a run record. Returns None if the time is invalid or has no UTC offset."""
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None
    return found.astimezone(UTC) if found.tzinfo else None


def _with_busy(host: HostFacts, users: Mapping[str, str]) -> HostFacts:
    if not users:
        return host
    # If a GPU is both booked and in use, its current user is shown.
    return replace(
        host, busy_gpus=host.busy_gpus | frozenset(users), gpu_users={**users, **host.gpu_users}, use_known=True
    )


def _with_excluded(host: HostFacts, reasons: Mapping[str, str]) -> HostFacts:
    if not reasons:
        return host
    return replace(host, busy_gpus=host.busy_gpus | frozenset(reasons), gpu_exclusions=reasons, use_known=True)
