"""The engine for the hosts in the fleet file, which Torchyard reaches over SSH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torchyard_core.engines.engine import LaunchRequest
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.launch import Launch
from torchyard_core.launch.runs.known_runs import KnownRun, stop_run
from torchyard_core.launch.sweeps.sweep_launch import SweepLaunch
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology


class SshEngine:
    """Launches runs on the hosts of the fleet file."""

    def __init__(self, fleet: Fleet):
        self._fleet = fleet

    def describe(self) -> Sequence[HostFacts]:
        return self._fleet.known()

    def planned(self, topology: Topology) -> Topology:
        return topology

    def submit(self, request: LaunchRequest) -> Launch:
        create: Callable[..., Launch] = Launch if request.sweep is None else partial(SweepLaunch, sweep=request.sweep)
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
        )

    def locate(self, run: KnownRun) -> dict[str, str]:
        return {name: self._fleet.hosts[name].place for name in run.hosts if name in self._fleet.hosts}

    def attach(self, host: str) -> AgentLink:
        return self._fleet.link(host, install=False)

    def cancel(self, run: KnownRun, *, force: bool) -> None:
        stop_run(run, self.attach(run.primary), force=force)

    def explain(self, run: KnownRun) -> str:
        return run.reason
