"""The Slurm engine, which implements `engines.engine.Engine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torchyard_core.engines.engine import LaunchRequest
from torchyard_core.engines.slurm.cluster_calendar import node_id
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.engines.slurm.launch import SlurmLaunch
from torchyard_core.engines.slurm.planned_nodes import on_slots, slots_of
from torchyard_core.engines.slurm.sweep_launch import SlurmSweepLaunch
from torchyard_core.errors import UsageError
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.launch import Launch
from torchyard_core.launch.runs.known_runs import KnownRun, show_run, stop_run
from torchyard_core.next_steps import BookNodes
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology

MOST_SLOTS = 10_000
"""Maximum number of slots of each node shape for the planner. It suffices, because no run has more replicas."""


class SlurmEngine:
    """Launches runs as jobs of a cluster."""

    def __init__(self, hosts: ClusterHosts, fleet: Fleet):
        self._hosts = hosts
        self._fleet = fleet
        self._description: ClusterDescription | None = None

    def describe(self) -> Sequence[HostFacts]:
        return slots_of(self._hosts.cluster, self._described().shapes, MOST_SLOTS)

    def planned(self, topology: Topology) -> Topology:
        return on_slots(topology, self._hosts.cluster, self.describe())

    def submit(self, request: LaunchRequest) -> Launch:
        if request.booking.length is not None:
            raise UsageError(
                "GPUs of a cluster cannot be booked for a run: Slurm allocates them.",
                code="no_booking",
                hint="Leave the booking out; --at gives the job's earliest start.",
            )
        booking = request.calendar.chosen_booking() if request.booking.booking_id is not None else None
        if booking is not None and not all(
            slot.startswith(node_id(self._hosts.cluster.name, "")) for slot in booking.slots
        ):
            name = self._hosts.cluster.name
            raise UsageError(
                f"the booking {booking.id} is not one of nodes of {name}.",
                code="no_booking",
                hint=(BookNodes(name), "Or leave --booking out."),
            )
        create: Callable[..., SlurmLaunch] = SlurmLaunch
        if request.sweep is not None:
            create = partial(SlurmSweepLaunch, sweep=request.sweep)
        return create(
            request.source,
            request.topology,
            request.name,
            self._fleet,
            request.secret_values,
            request.on_event,
            request.on_check,
            request.on_progress,
            ask=request.ask,
            caches=request.caches,
            again=request.again,
            reserving=request.calendar,
            own=request.own,
            zone=request.zone,
            cluster=self._hosts,
            description=self._description,
            start_at=request.booking.start_at if booking is None else booking.start,
            booking=booking,
        )

    def locate(self, run: KnownRun) -> dict[str, str]:
        found: dict[str, str] = self.attach(run.primary).call("run.nodes", {"run_id": run.run_id})
        return found

    def attach(self, host: str) -> AgentLink:
        return self._fleet.link(host, install=False)

    def cancel(self, run: KnownRun, *, force: bool) -> None:
        stop_run(run, self.attach(run.primary), force=force)

    def explain(self, run: KnownRun) -> str:
        return str(show_run(run, self.attach(run.primary))["reason"])

    def _described(self) -> ClusterDescription:
        if self._description is None:
            self._description = ClusterDescription.read(self._hosts.login(), self._hosts.cluster)
            self._description.require_nodes(self._hosts.cluster)
        return self._description
