"""The interface of an engine, which gives a run its hosts: those of the fleet file, or nodes of a scheduler.

All other parts are the same for all engines: the topology and its plan, the keepers, and the links to hosts.
docs/how-to-add-an-engine.md describes what an engine implements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.calendar_port import BookingOptions, LaunchCalendar
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Ask
from torchyard_core.launch.launch import Launch
from torchyard_core.launch.restart import EndedRun
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology


@dataclass(frozen=True)
class LaunchRequest:
    """What an engine needs to launch a run. The fields are those of `Launch`."""

    source: TopologyFile
    topology: Topology
    name: str
    secret_values: dict[str, str]
    on_event: Callable[[dict[str, Any]], None]
    on_check: Callable[[Check], None]
    on_progress: Callable[[str, int, int], None]
    ask: Ask
    caches: Path | None
    again: EndedRun | None
    calendar: LaunchCalendar
    booking: BookingOptions
    own: Sequence[RunRecord]
    create: Callable[..., Launch] | None = None
    """Creates another kind of launch, such as a sweep's, from the arguments of `Launch`."""


class Engine(Protocol):
    """An engine. Its methods raise HostError if the engine's hosts cannot be reached."""

    def describe(self) -> Sequence[HostFacts]:
        """Returns the resources for the planner: the hosts, or slots for nodes that the scheduler has yet to choose."""

    def planned(self, topology: Topology) -> Topology:
        """Returns the topology for the planner, in which pools name hosts of `describe`."""

    def submit(self, request: LaunchRequest) -> Launch:
        """Returns the launch of a run, which the caller performs and may cancel."""

    def locate(self, run: KnownRun) -> dict[str, str]:
        """Returns the address or the node of each host of a run for which it is known."""

    def attach(self, host: str) -> AgentLink:
        """Returns the link to a host of a run."""

    def cancel(self, run: KnownRun, *, force: bool) -> None:
        """Requests the end of a run that is waiting or running. Raises AgentRefused if it has already ended."""

    def explain(self, run: KnownRun) -> str:
        """Returns the reason why a run is waiting or has ended; empty if there is none."""
