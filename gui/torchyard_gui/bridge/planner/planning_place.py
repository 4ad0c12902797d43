"""The place for which the Topology page plans, which is either the hosts of the fleet file or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from torchyard_core.fleet.cluster import Cluster, cluster_named_by
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.planner.host_availability import check_failure

if TYPE_CHECKING:
    from torchyard_core.launch.rank_assignment import Plan


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
        self._has_begun = False
        self._known = self.clusters, self.has_hosts
        if fleet is not None:
            fleet.hosts_changed.connect(self._fleet_changed)
            fleet.clusters.changed.connect(self._cluster_changed)

    @property
    def clusters(self) -> Sequence[Cluster]:
        """The clusters of the fleet file."""
        return self._fleet.inventory.clusters if self._fleet is not None else ()

    @property
    def has_hosts(self) -> bool:
        """Whether the fleet file has hosts."""
        return self._fleet is None or bool(self._fleet.inventory.hosts)

    @property
    def place(self) -> str:
        """The name of the chosen cluster, or "" for the hosts of the fleet file."""
        return self._place if any(cluster.name == self._place for cluster in self.clusters) else ""

    def cluster_for(self, topology: Topology) -> Cluster | None:
        """Returns the cluster for a topology: the one that it names, else the chosen one, else None.

        If neither the fleet file nor the topology has hosts, the first cluster is used even if the user chose none.
        """
        named = cluster_named_by(topology, self.clusters)
        chosen = named or next((cluster for cluster in self.clusters if cluster.name == self.place), None)
        if chosen is None and not self.has_hosts and not any(pool.hosts for pool in topology.pools):
            return next(iter(self.clusters), None)
        return chosen

    def place_for(self, topology: Topology | None) -> str:
        """Returns the name of the cluster for a topology, or "" for the hosts of the fleet file."""
        cluster = self.cluster_for(topology) if topology is not None else None
        return cluster.name if cluster is not None else ""

    def is_named_by(self, topology: Topology) -> bool:
        """Returns whether the topology names a cluster. If it does, the user's choice of a place has no effect."""
        return cluster_named_by(topology, self.clusters) is not None

    def status(self, cluster: Cluster) -> ClusterStatus:
        return self._fleet.clusters.of(cluster) if self._fleet is not None else ClusterStatus(cluster)

    def choose(self, place: str) -> None:
        """Sets the place: the name of a cluster, or "" for the hosts of the fleet file."""
        if place != self._place:
            self._place = place
            self.chosen.emit(place)
            self.changed.emit()

    def begin(self) -> None:
        """Allows checks of clusters. Each check logs in to a cluster."""
        self._has_begun = True
        self.changed.emit()

    def want(self, cluster: Cluster) -> None:
        """Checks a cluster that is unchecked or has no agent, unless a check is in progress or not allowed yet."""
        status = self.status(cluster)
        is_unchecked = status.check is None and status.lost is None
        if self._has_begun and status.doing is None and (is_unchecked or status.has_no_agent):
            self.check(cluster)

    def check(self, cluster: Cluster) -> None:
        """Logs in to a cluster and reads its description. Installs the agent on the login node if necessary."""
        if self._fleet is not None:
            self._fleet.clusters.check([cluster.name])

    def plan_input(self, topology: Topology, cluster: Cluster) -> tuple[Topology, tuple[HostFacts, ...]]:
        """Returns the topology and the slots of a cluster for the planner."""
        from torchyard_core.engines.slurm.plan_on_cluster import planner_input

        status = self.status(cluster)
        failure = check_failure(status) if status.check_error is not None else ""
        return planner_input(topology, cluster, status.description, failure)

    def numbered(self, plan: Plan, cluster: Cluster, slots: Sequence[HostFacts]) -> tuple[Plan, tuple[HostFacts, ...]]:
        """Returns a plan with its slots numbered as in a launch, and the used slots in the order of their numbers."""
        from torchyard_core.engines.slurm.plan_on_cluster import numbered_slots

        return numbered_slots(plan, cluster, slots)

    def _cluster_changed(self, name: str) -> None:
        self.changed.emit()

    def _fleet_changed(self) -> None:
        if self._known != (self.clusters, self.has_hosts):
            self._known = self.clusters, self.has_hosts
            self.changed.emit()
