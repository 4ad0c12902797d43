"""The use case "book nodes of clusters". `engines.slurm.reservation_mirror` turns bookings into reservations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from torchyard_core.app.desktop import Desktop
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, cluster_of, is_of_cluster
from torchyard_core.errors import AgentRefused, HostError, RunFailed, TorchyardError

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.engines.slurm.reservation_mirror import Mirrored

Result = TypeVar("Result")
PAST, AHEAD = timedelta(days=2), timedelta(days=36_500)
"""A change is found by comparing the bookings from PAST ago until AHEAD from now before and after the change."""


@dataclass(frozen=True)
class MirroredChange(Generic[Result]):
    """The result of a change to the calendar, and of mirroring the change as Slurm reservations."""

    result: Result
    mirrored: tuple[Mirrored, ...] = ()
    """The result of mirroring for each cluster whose nodes the change affected."""
    errors: tuple[TorchyardError, ...] = ()
    """The errors of clusters that did not answer, and of reservations that Slurm could not end."""


class ClusterBookings:
    """Mirrors the user's bookings of cluster nodes as Slurm reservations, and adds cluster nodes to the calendar."""

    def __init__(self, desktop: Desktop, store: BookingStore):
        self._desktop = desktop
        self._store = store

    def add_nodes(self, words: Iterable[str]) -> None:
        """Adds all nodes of each cluster that is named in `words`, for example by `hpc:n1`, to the calendar.

        Raises HostError or AgentRefused.
        """
        from torchyard_core.engines.registry import clusters_with_nodes, read_node_slots

        for name in clusters_with_nodes(self._desktop.fleet, words):
            self._store.remember_slots(read_node_slots(self._desktop.fleet, name))

    def of(self, bookings: Iterable[Booking]) -> tuple[list[Mirrored], list[TorchyardError]]:
        """Mirrors all of the user's bookings on each cluster whose nodes occur in the given bookings.

        Returns the results, and the errors of the clusters that do not answer.
        """
        from torchyard_core.engines.registry import clusters_with_nodes, mirror_reservations

        nodes = {gpu for booking in bookings for gpu in booking.gpus if is_of_cluster(gpu)}
        done: list[Mirrored] = []
        errors: list[TorchyardError] = []
        known = clusters_with_nodes(self._desktop.fleet, nodes) if nodes else []
        errors += [_not_in_fleet(name) for name in sorted({cluster_of(node) for node in nodes} - set(known))]
        for name in known:
            try:
                done.append(mirror_reservations(self._desktop.fleet, name, self._store, self._desktop.home.caches))
            except (HostError, AgentRefused) as error:
                errors.append(error)
        return done, errors

    def perform(
        self,
        change: Callable[[BookingStore], Result],
        nodes: Iterable[str] = (),
        checkpoint: Callable[[], None] = lambda: None,
    ) -> MirroredChange[Result]:
        """Changes the calendar, then mirrors the bookings of nodes that were affected by the change.

        Args:
            change: Changes the calendar.
            nodes: IDs of slots that the change will book. Nodes that are not in the calendar yet are added to it.
            checkpoint: Called before and after the change. Raises an exception if the user has cancelled. A change that
                was already made is then undone.

        Raises:
            RunFailed: Slurm refuses a reservation. The bookings are as before the change.
            HostError, AgentRefused: The nodes of a cluster cannot be read. Nothing was changed.
            TorchyardError: An error of `change`.
        """
        known = {slot.id for slot in self._store.slots()}
        self.add_nodes(node for node in nodes if is_of_cluster(node) and node not in known)
        checkpoint()
        before = self._own()
        result = change(self._store)
        changed = [booking for key, booking in self._own().items() if booking != before.get(key)]
        done, errors = self.settle(before, changed)
        try:
            checkpoint()
        except Exception:  # Whatever the caller raises, the change must not remain.
            self._take_back(before, changed)
            self.of(changed)
            raise
        return MirroredChange(result, tuple(done), tuple(errors))

    def settle(
        self, before: Mapping[str, Booking], changed: Sequence[Booking]
    ) -> tuple[list[Mirrored], list[TorchyardError]]:
        """Mirrors bookings that have just changed. If Slurm refuses a reservation, undoes all of the changes.

        Args:
            before: The bookings before the change, by ID; a new booking is not among them.
            changed: The bookings after the change.

        Returns:
            The results, the errors of the clusters that do not answer, and the errors of reservations that Slurm could
            not end. The next mirroring retries these clusters and reservations.

        Raises:
            RunFailed: Slurm refuses a reservation. The bookings are as before.
        """
        former = [before[one.id] for one in changed if one.id in before]
        done, errors = self.of([*changed, *former])
        problems = {key: problem for result in done for key, problem in result.problems.items()}
        refused = [problems[one.id] for one in changed if one.id in problems and one.is_live]
        errors += [problems[one.id] for one in changed if one.id in problems and not one.is_live]
        if not refused:
            return done, errors
        kept = self._take_back(before, changed, by_slurm=True)
        self.of([*changed, *former])
        is_new = not former
        message = (
            f"Slurm refuses the reservation, so nothing was booked: {refused[0].message}"
            if is_new
            else f"Slurm refuses the changed reservation, so nothing was changed: {refused[0].message}"
        )
        if kept is not None:
            message = f"Slurm refuses the reservation: {refused[0].message}. The booking stays changed: {kept.message}"
        raise RunFailed(message, code="not_reserved", hint=refused[0].advice)

    def _take_back(
        self, before: Mapping[str, Booking], changed: Iterable[Booking], *, by_slurm: bool = False
    ) -> Refused | None:
        """Cancels new bookings and restores changed ones. Returns the first error if the calendar refuses, or None.

        With `by_slurm`, the calendar's history shows that Slurm has refused the change.
        """
        refused: Refused | None = None
        for one in changed:
            try:
                with self._store.in_the_name_of(cluster_of(one.gpus[0])) if by_slurm else nullcontext():
                    self._take_one_back(before.get(one.id), one)
            except Refused as why:
                refused = refused or why
        return refused

    def _take_one_back(self, was: Booking | None, one: Booking) -> None:
        if was is None and one.is_live:
            self._store.release(one.id)
        elif was is not None and was.is_live and one.is_live:
            fields = ("start", "end", "gpus", "title", "purpose", "stop_at_end")
            differs = {name: getattr(was, name) for name in fields if getattr(was, name) != getattr(one, name)}
            self._store.change(one.id, **differs)

    def _own(self) -> dict[str, Booking]:
        """Returns the user's bookings of nodes by ID, including bookings that no longer hold their nodes."""
        now = self._store.now()
        every = self._store.bookings(now - PAST, now + AHEAD)
        return {one.id: one for one in every if one.owner == self._store.person and any(map(is_of_cluster, one.gpus))}


def _not_in_fleet(cluster: str) -> TorchyardError:
    return TorchyardError(
        f"the cluster {cluster} is not in the fleet, so Slurm keeps the reservation as it was.",
        code="cluster_not_in_fleet",
        hint="Add the cluster again, and the reservation follows the calendar.",
    )
