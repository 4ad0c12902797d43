"""The place for which the Topology page plans: the hosts of the fleet file, or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.cluster import Cluster, cluster_named_by
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.engines.slurm.cluster_check import ClusterCheck
    from torchyard_core.engines.slurm.description import ClusterDescription
    from torchyard_core.launch.rank_assignment import Plan


@dataclass(frozen=True)
class ClusterStatus:
    """What is known about a cluster."""

    description: ClusterDescription | None = None
    """The answer of the last successful check."""
    error: TorchyardError | None = None
    """The error of the last check, or None if it was successful."""
    is_checking: bool = False


class PlanningPlace(QObject):
    """The chosen place and the descriptions of clusters. Without a fleet, there are no clusters.

    A cluster is checked when it is chosen or named by the shown topology, but not before `begin` is called.
    """

    changed = Signal()
    """Emitted when the place, the clusters of the fleet file, or the status of a cluster has changed."""
    chosen = Signal(str)
    """Emitted with the name of the cluster that the user chose, or "" for the hosts of the fleet file."""

    def __init__(self, fleet: FleetModel | None = None, place: str = "", parent: QObject | None = None):
        """Restores the stored place. `begin` starts checks of clusters."""
        super().__init__(parent)
        self._fleet = fleet
        self._place = place
        self._statuses: dict[Cluster, ClusterStatus] = {}
        self._has_begun = False
        self._known = self.clusters
        if fleet is not None:
            fleet.hosts_changed.connect(self._fleet_changed)

    @property
    def clusters(self) -> Sequence[Cluster]:
        """The clusters of the fleet file."""
        return self._fleet.inventory.clusters if self._fleet is not None else ()

    @property
    def place(self) -> str:
        """The name of the chosen cluster, or "" for the hosts of the fleet file."""
        return self._place if any(cluster.name == self._place for cluster in self.clusters) else ""

    def cluster_for(self, topology: Topology) -> Cluster | None:
        """Returns the cluster for a topology: the one that it names, else the chosen one, else None."""
        named = cluster_named_by(topology, self.clusters)
        return named or next((cluster for cluster in self.clusters if cluster.name == self.place), None)

    def is_named_by(self, topology: Topology) -> bool:
        """Returns whether the topology itself names the cluster, so that the choice has no effect."""
        return cluster_named_by(topology, self.clusters) is not None

    def status(self, cluster: Cluster) -> ClusterStatus:
        return self._statuses.get(cluster, ClusterStatus())

    def choose(self, place: str) -> None:
        """Sets the place: the name of a cluster, or "" for the hosts of the fleet file."""
        if place != self._place:
            self._place = place
            self.chosen.emit(place)
            self.changed.emit()

    def begin(self) -> None:
        """Allows checks of clusters, which log in to them."""
        self._has_begun = True
        self.changed.emit()

    def want(self, cluster: Cluster) -> None:
        """Checks a cluster if it has not been checked yet."""
        if self._has_begun and cluster not in self._statuses:
            self.check(cluster)

    def check(self, cluster: Cluster) -> None:
        """Logs in to a cluster and reads its description. Installs the agent there if necessary."""
        before = self.status(cluster)
        if self._fleet is None or before.is_checking:
            return
        self._statuses[cluster] = ClusterStatus(before.description, before.error, is_checking=True)
        fleet = self._fleet
        fleet.questions.begin()

        def look() -> ClusterCheck:
            from torchyard_core.engines.registry import check_cluster

            return check_cluster(fleet.fleet, cluster.name)

        def done(check: ClusterCheck) -> None:
            self._take(cluster, check.description, check.error)

        fleet.jobs.run(look, done, lambda error: self._take(cluster, None, error), owner=self)
        self.changed.emit()

    def plan_input(self, topology: Topology, cluster: Cluster) -> tuple[Topology, tuple[HostFacts, ...]]:
        """Returns the topology and the slots of a cluster for the planner."""
        from torchyard_core.engines.slurm.design_plan import design_input

        return design_input(topology, cluster, self.status(cluster).description)

    def numbered(self, plan: Plan, cluster: Cluster, slots: Sequence[HostFacts]) -> tuple[Plan, tuple[HostFacts, ...]]:
        """Returns a plan on slots of a cluster for display, with the slots that it uses."""
        from torchyard_core.engines.slurm.design_plan import numbered_slots

        return numbered_slots(plan, cluster, slots)

    def _take(self, cluster: Cluster, found: ClusterDescription | None, error: TorchyardError | None) -> None:
        before = self.status(cluster)
        self._statuses[cluster] = ClusterStatus(found or before.description, error)
        self.changed.emit()

    def _fleet_changed(self) -> None:
        if self.clusters != self._known:
            self._known = self.clusters
            self.changed.emit()
