"""What a launch needs of a host, whoever provides it: `fleet` stands above this folder, so it fits itself to this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from torchyard_core.errors import HostError
from torchyard_core.topology.host_facts import HostFacts


class AgentLink(Protocol):
    """A conversation with one host's daemon (see `torchyard_core.fleet.daemon_client`)."""

    host: str
    hello: dict[str, Any]
    python: str
    ssh_address: str
    archive: str

    @property
    def is_open(self) -> bool:
        """False once the connection is gone."""

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        """Asks without waiting."""

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """Asks and waits. Raises AgentRefused, or a HostError."""

    def listen(self, method: str, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Calls back with each notification of this name; returns how to stop."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls back once the connection is gone."""


Reattach = Callable[[str], AgentLink]
"""A fresh link to a host by its name. Raises a HostError."""


class Hosts(Protocol):
    """The team's hosts as a launch needs them (see `torchyard_core.fleet.fleet`)."""

    def known(self) -> Sequence[HostFacts]:
        """Every host of the fleet, as far as is known without asking."""

    def reach(
        self, names: Sequence[str], arrived: Callable[[str, AgentLink | HostError], None]
    ) -> dict[str, AgentLink | HostError]:
        """Links to these hosts, or what is in the way, side by side. `arrived` is called for each as it comes."""

    def look(self, name: str, python: str | None) -> dict[str, Any]:
        """A reached host's answer to `host.facts` (`python`: the programs' interpreter, None for the host's own).

        It is kept, and `known` takes it in.
        """
