"""What the calendar means for a launch, as pure functions: which slots a run takes, on which hosts it may be planned,
which of a person's bookings holds it, and what length is proposed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from torchyard_core.booking.model import USUAL_LENGTH, Booking, cpu_slot, is_cpu_id
from torchyard_core.booking.search.conflict import Clashing
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.topology.host_facts import HostFacts

LONGER = 1.25
STEP = timedelta(minutes=15)


def proposed_length(records: Iterable[RunRecord], name: str) -> timedelta:
    """A quarter more than the last run of that name took, in whole quarters of an hour; 8 h where there was none.

    `records`: newest first.
    """
    for record in records:
        if record.name != name or not record.ended or record.state != "succeeded":
            continue
        try:
            took = datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.submitted)
        except (ValueError, TypeError):
            continue
        steps = -(-took * LONGER // STEP)  # rounded up
        return max(STEP, STEP * steps)
    return USUAL_LENGTH


def taken_slots(planned: Plan, known: Sequence[HostFacts], catalogue: Iterable[str]) -> tuple[str, ...]:
    """The slots that a plan takes: its GPUs; of hosts without GPUs their CPU slots, where the calendar has them."""
    in_calendar = set(catalogue)
    without_gpus = {host.name for host in known if host.checked and not host.gpus}
    gpus = {gpu.uuid for replica in planned.replicas for gpu in replica.gpus}
    cpus = {cpu_slot(host).id for host in planned.hosts if host in without_gpus}
    return tuple(sorted(gpus | (cpus & in_calendar)))


def to_book(taken: Sequence[str]) -> tuple[str, ...]:
    """Which of the slots a run books: its GPUs. A run without any books CPU slots; servers of a run with GPUs may share
    a host with those of others."""
    gpus = tuple(slot for slot in taken if not is_cpu_id(slot))
    return gpus or tuple(taken)


def hosts_with_gpus(planned: Plan) -> tuple[str, ...]:
    """The hosts on which a plan takes GPUs: of more than one, it must hold a booking."""
    return tuple(dict.fromkeys(replica.host for replica in planned.replicas if replica.host and replica.gpus))


def in_the_way(bookings: Iterable[Booking], start: datetime, end: datetime) -> dict[str, Booking]:
    """By slot, the first live booking that touches the time."""
    found: dict[str, Booking] = {}
    for booking in sorted(bookings, key=lambda one: (one.start, one.id)):
        if booking.is_live and booking.start < end and booking.end > start:
            for gpu in booking.gpus:
                found.setdefault(gpu, booking)
    return found


def clashing(taken: Sequence[str], way: Mapping[str, Booking]) -> tuple[Clashing, ...]:
    """The bookings in the way of these slots, each with those that it has."""
    by_booking: dict[str, list[str]] = {}
    for slot in taken:
        if slot in way:
            by_booking.setdefault(way[slot].id, []).append(slot)
    bookings = {booking.id: booking for booking in way.values()}
    return tuple(Clashing(bookings[key], tuple(slots)) for key, slots in by_booking.items())


def without(known: Sequence[HostFacts], way: Mapping[str, Booking]) -> tuple[HostFacts, ...]:
    """The hosts less what others have booked: their GPUs count as busy, and nothing is placed on a host whose CPU slot
    is booked."""
    left: list[HostFacts] = []
    for host in known:
        if not host.gpus and (whole := way.get(cpu_slot(host.name).id)) is not None:
            left.append(replace(host, booked_by=whole.owner))
            continue
        booked = {gpu.uuid: f"{way[gpu.uuid].owner} (booked)" for gpu in host.gpus if gpu.uuid in way}
        left.append(_with_busy(host, booked))
    return tuple(left)


def closed(known: Sequence[HostFacts], gpus: Collection[str]) -> tuple[HostFacts, ...]:
    """The hosts less GPUs that the rules keep closed to who would book them."""
    return tuple(
        _with_busy(host, {gpu.uuid: "nobody: it is closed then" for gpu in host.gpus if gpu.uuid in gpus})
        for host in known
    )


def only(known: Sequence[HostFacts], slots: Iterable[str], way: Mapping[str, Booking]) -> tuple[HostFacts, ...]:
    """The hosts with no GPU to be had but these; those without GPUs as `without` has them. With CPU slots alone, only
    their hosts."""
    wanted = set(slots)
    if all(map(is_cpu_id, wanted)):
        return tuple(host for host in known if not host.gpus and cpu_slot(host.name).id in wanted)
    left: list[HostFacts] = []
    for host in known:
        slot = cpu_slot(host.name).id
        if not host.gpus and slot in way and slot not in wanted:
            left.append(replace(host, booked_by=way[slot].owner))
            continue
        others = {gpu.uuid: "nobody of this booking" for gpu in host.gpus if gpu.uuid not in wanted}
        left.append(_with_busy(host, others))
    return tuple(left)


def holds(booking: Booking, taken: Sequence[str]) -> bool:
    """Whether a booking has all that the run takes of what is to be booked."""
    return set(to_book(taken)) <= set(booking.gpus)


def own_first(bookings: Iterable[Booking], person: str, start: datetime) -> list[Booking]:
    """The person's live bookings at `start`: those of no run yet first, then the smallest, then the oldest."""
    own = [one for one in bookings if one.owner == person and one.is_live and one.start <= start < one.end]
    return sorted(own, key=lambda one: (one.run_id is not None, len(one.gpus), one.start, one.id))


def keeps_until(booking: Booking, state: str, ended: datetime, keep: timedelta | None) -> datetime | None:
    """Until when a booking that was made for a run keeps its GPUs once that has ended; None where it lets them go.

    After a failure they are kept for a while (`keep` None: to the booking's end), as somebody will try again.
    """
    if state != "failed":
        return None
    return booking.end if keep is None else min(booking.end, ended + keep)


def moment_of(text: str) -> datetime | None:
    """A time of a run's record, in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None
    return found.astimezone(UTC) if found.tzinfo else None


def _with_busy(host: HostFacts, users: Mapping[str, str]) -> HostFacts:
    if not users:
        return host
    # Who uses a GPU now is the better answer where both are known.
    return replace(
        host, busy_gpus=host.busy_gpus | frozenset(users), gpu_users={**users, **host.gpu_users}, use_known=True
    )
