"""Chooses the engine of a topology or a run, and creates the fleet, which reaches the hosts of all engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard_core.background_thread import in_background
from torchyard_core.booking.model import NODE_PREFIX, Slot
from torchyard_core.engines.engine import Engine
from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar, node_slots
from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.engines.slurm.engine import SlurmEngine
from torchyard_core.engines.slurm.launch import SlurmLaunch
from torchyard_core.engines.slurm.plan_on_cluster import PlanOnCluster
from torchyard_core.engines.slurm.reservation_mirror import Mirrored, ReservationMirror
from torchyard_core.engines.slurm.sweep_launch import SlurmSweepLaunch
from torchyard_core.engines.ssh import SshEngine
from torchyard_core.errors import UsageError
from torchyard_core.fleet.cluster import Cluster, moved_to_cluster
from torchyard_core.fleet.credential_prompts import Prompter
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.fleet.inventory import Host
from torchyard_core.launch.sweeps.sweep_launch import SweepRequest
from torchyard_core.problems import did_you_mean
from torchyard_core.sweeps.model import Search
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import Topology

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.fleet.daemon_client import DaemonClient


def open_fleet(
    hosts: Iterable[Host],
    clusters: Iterable[Cluster],
    known_hosts: Path,
    facts_file: Path,
    questions: Prompter | None = None,
    on_remark: Callable[[str], None] = lambda remark: None,
) -> Fleet:
    """Creates a fleet without open links. It can also open links to the nodes of runs on clusters."""
    fleet = Fleet(hosts, known_hosts, facts_file, questions, on_remark)
    fleet.others = tuple(ClusterHosts(cluster, fleet.dialer, on_remark) for cluster in clusters)
    return fleet


def use_inventory(fleet: Fleet, hosts: Iterable[Host], clusters: Iterable[Cluster]) -> None:
    """Replaces the hosts and clusters of a fleet. Closes the links to removed and changed hosts and clusters."""
    fleet.use(hosts)
    before = {other.cluster: other for other in _clusters(fleet)}
    after = [before.get(one) or ClusterHosts(one, fleet.dialer, fleet.on_remark) for one in clusters]
    fleet.others = tuple(after)
    for other in before.values():
        if other not in after:
            in_background(other.close)


def engine_of(topology: Topology, fleet: Fleet) -> Engine:
    """Returns the engine of the cluster that the topology's pools name, or the engine for SSH if they name no cluster.

    Raises UsageError if a pool names a cluster, unless all pools name this cluster and nothing else.
    """
    named = dict.fromkeys(host for pool in topology.pools for host in pool.hosts or ())
    clusters = {other.cluster.name: other for other in _clusters(fleet)}
    chosen = [name for name in named if name in clusters]
    if not chosen:
        return SshEngine(fleet)
    on_clusters = all(pool.hosts and set(pool.hosts) == {chosen[0]} for pool in topology.pools)
    if not on_clusters:
        raise UsageError(
            f"some pools are on the cluster {chosen[0]} and others are not: all pools of a run need the same place.",
            code="mixed_places",
            hint=f"Write `hosts: [{chosen[0]}]` in each pool, or choose this cluster for the whole run with --on.",
        )
    return SlurmEngine(clusters[chosen[0]], fleet)


def check_cluster(fleet: Fleet, name: str, *, install: bool = True) -> ClusterCheck:
    """Logs in to a cluster and checks it. Raises UsageError for an unknown cluster.

    By default, installs the agent on the login node if it is missing.
    """
    return ClusterCheck.of(_cluster_named(fleet, name), install=install)


def open_login(fleet: Fleet, name: str) -> DaemonClient | None:
    """Returns the connection to a cluster's login node if the connection is open. Does not open a connection."""
    hosts = next((other for other in _clusters(fleet) if other.cluster.name == name), None)
    return hosts.open_login if hosts is not None else None


def read_cluster_calendar(fleet: Fleet, name: str, *, install: bool = False) -> ClusterCalendar:
    """Logs in to a cluster and returns the calendar of its nodes.

    Raises UsageError for an unknown cluster, and HostError or AgentRefused if the cluster does not answer.
    """
    return ClusterCalendar.read(_cluster_named(fleet, name), install=install)


def clusters_with_nodes(fleet: Fleet, gpus: Iterable[str]) -> list[str]:
    """Returns the names of the clusters with nodes that `gpus` names.

    `gpus` contains IDs or names of the calendar's slots, such as `hpc:n1`.
    """
    words = [word.removeprefix(NODE_PREFIX) for text in gpus for word in re.split(r"[,\s]+", text)]
    names = {re.split("[:/]", word)[0] for word in words}
    return [other.cluster.name for other in _clusters(fleet) if other.cluster.name in names]


def read_node_slots(fleet: Fleet, name: str) -> tuple[Slot, ...]:
    """Logs in to a cluster and returns its nodes as slots of the calendar. Raises HostError or AgentRefused."""
    hosts = _cluster_named(fleet, name)
    description = ClusterDescription.read(hosts.login(), hosts.cluster)
    nodes = [{**shape, "name": node} for shape in description.shapes for node in shape["names"]]
    return node_slots(hosts.cluster, nodes)


def mirror_reservations(fleet: Fleet, name: str, store: BookingStore, folder: Path) -> Mirrored:
    """Mirrors the bookings of a cluster's nodes as Slurm reservations, and changes of the reservations as bookings.

    Raises HostError, AgentRefused or an error of the booking store.
    """
    return ReservationMirror(_cluster_named(fleet, name), store, folder).run(install=True)


def submitted_script(source: TopologyFile, place: str, fleet: Fleet, search: Search | None = None) -> str:
    """Returns the script that a launch on the cluster `place` would submit. With `search`, the launch is of a sweep.

    Raises UsageError for an unknown cluster, and RunFailed or HostError as a launch does.
    """
    moved = on_place(source, place, fleet)
    assert moved.topology is not None
    hosts = next(other for other in _clusters(fleet) if other.cluster.name == place)
    create: Callable[..., SlurmLaunch] = SlurmLaunch
    if search is not None:
        create = partial(SlurmSweepLaunch, sweep=SweepRequest(search))
    launch = create(moved, moved.topology, moved.topology.name, fleet, {}, lambda event: None, cluster=hosts)
    return launch.script()


def plan_on_cluster(source: TopologyFile, place: str, fleet: Fleet) -> PlanOnCluster:
    """Logs in to the cluster `place`, and plans a topology on its nodes.

    Raises UsageError for an unknown cluster, and HostError or AgentRefused if the cluster does not answer.
    """
    hosts = _cluster_named(fleet, place)
    return PlanOnCluster.of(source, hosts.cluster, ClusterDescription.read(hosts.login(), hosts.cluster))


def clusters_of(fleet: Fleet) -> tuple[Cluster, ...]:
    """Returns the clusters of a fleet."""
    return tuple(hosts.cluster for hosts in _clusters(fleet))


def _clusters(fleet: Fleet) -> list[ClusterHosts]:
    return [other for other in fleet.others if isinstance(other, ClusterHosts)]


def _cluster_named(fleet: Fleet, name: str) -> ClusterHosts:
    """Returns the cluster of this name. Raises UsageError if there is none."""
    found = {other.cluster.name: other for other in _clusters(fleet)}
    if name not in found:
        hint = f"Its clusters: {', '.join(found)}." if found else "Add one to `clusters` of the fleet file."
        message = f"the fleet has no cluster `{name}`{did_you_mean(name, list(found))}"
        raise UsageError(message, code="unknown_cluster", hint=hint)
    return found[name]


def on_place(source: TopologyFile, place: str, fleet: Fleet) -> TopologyFile:
    """Returns the topology with all pools on the cluster `place`. Raises UsageError for an unknown cluster.

    Labels, pins and host names refer to hosts in the fleet file, so they are removed.
    """
    _cluster_named(fleet, place)
    if source.topology is None:
        return source
    return replace(source, topology=moved_to_cluster(source.topology, place))
