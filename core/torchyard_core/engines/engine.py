"""The interface of an engine. An engine provides the hosts of a run: hosts of the fleet file, or nodes of a scheduler.

The topology and its plan, the keepers, and the links to hosts are the same for all engines.
docs/how-to-add-an-engine.md describes how to implement an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.calendar_interface import BookingOptions, LaunchCalendar
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Ask
from torchyard_core.launch.launch import Launch
from torchyard_core.launch.restart import EndedRun
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology

if TYPE_CHECKING:
    from torchyard_core.launch.sweeps.sweep_launch import SweepRequest


@dataclass(frozen=True)
class LaunchRequest:
    """The arguments of a launch by an engine. Most fields have the same meaning as in `Launch`."""

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
    zone: str = "UTC"
    """The time zone for times in messages."""
    sweep: SweepRequest | None = None
    """The sweep to launch; None for a run."""


class Engine(Protocol):
    """Interface of an engine. All methods raise HostError if the engine's hosts cannot be reached."""

    def describe(self) -> Sequence[HostFacts]:
        """Returns the hosts for the planner, or slots for nodes that the scheduler will choose."""

    def planned(self, topology: Topology) -> Topology:
        """Returns a copy of the topology for the planner. Its pools list hosts that `describe` has returned."""

    def submit(self, request: LaunchRequest) -> Launch:
        """Returns the launch of a run. The caller runs it, and may cancel it."""

    def locate(self, run: KnownRun) -> dict[str, str]:
        """Returns the address or node of each host of a run. Omits hosts whose address is unknown."""

    def attach(self, host: str) -> AgentLink:
        """Returns the link to a host of a run."""

    def cancel(self, run: KnownRun, *, force: bool) -> None:
        """Asks for the end of a run that waits or is running. Raises AgentRefused if the run has already ended."""

    def explain(self, run: KnownRun) -> str:
        """Returns the reason why a run waits or has ended; empty if no reason is known."""
