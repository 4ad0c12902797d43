"""The use case "mirror bookings": bookings of a cluster's nodes become reservations of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchyard_core.app.desktop import Desktop
from torchyard_core.booking.model import Booking, is_of_cluster
from torchyard_core.errors import AgentRefused, HostError, TorchyardError

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.engines.slurm.reservation_mirror import Mirrored


class MirrorBookings:
    """Mirrors the user's bookings of the nodes of clusters, and adds these nodes to the calendar."""

    def __init__(self, desktop: Desktop, store: BookingStore):
        self._desktop = desktop
        self._store = store

    def add_nodes(self, words: Iterable[str]) -> None:
        """Adds the nodes of the clusters that the words, such as `hpc:n1`, name. Raises HostError or AgentRefused."""
        from torchyard_core.engines.registry import clusters_with_nodes, read_node_slots

        for name in clusters_with_nodes(self._desktop.fleet, words):
            self._store.remember_slots(read_node_slots(self._desktop.fleet, name))

    def of(self, bookings: Iterable[Booking]) -> tuple[list[Mirrored], list[TorchyardError]]:
        """Mirrors the clusters whose nodes are in the given bookings.

        Returns the results, and the errors of the clusters that do not answer.
        """
        from torchyard_core.engines.registry import clusters_with_nodes, mirror_reservations

        nodes = {gpu for booking in bookings for gpu in booking.gpus if is_of_cluster(gpu)}
        done: list[Mirrored] = []
        errors: list[TorchyardError] = []
        for name in clusters_with_nodes(self._desktop.fleet, nodes) if nodes else ():
            try:
                done.append(mirror_reservations(self._desktop.fleet, name, self._store, self._desktop.home.caches))
            except (HostError, AgentRefused) as error:
                errors.append(error)
        return done, errors
