"""Interfaces of the hosts and links that a launch uses. `torchyard_core.fleet`, a higher layer, implements them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from torchyard_core.errors import HostError
from torchyard_core.topology.host_facts import HostFacts


class AgentLink(Protocol):
    """A connection to the daemon of one host (`torchyard_core.fleet.daemon_client`)."""

    host: str
    hello: dict[str, Any]
    python: str
    ssh_address: str
    archive: str

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        """Sends a request. The returned future raises the same errors as `call`."""

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """Sends a request and waits for the answer. Raises AgentRefused for a refusal, and HostError otherwise."""

    def listen(self, method: str, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Registers a listener for one kind of notification, named `method`. Returns a function that removes it."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Registers a callback for the end of the connection."""


Reattach = Callable[[str], AgentLink]
"""Opens a new link to the host of this name. Raises HostError if the connection fails."""


class Hosts(Protocol):
    """The hosts of the fleet (`torchyard_core.fleet.fleet`)."""

    def known(self) -> Sequence[HostFacts]:
        """Returns the cached facts of all hosts of the fleet without contacting them."""

    def reach(
        self, names: Sequence[str], arrived: Callable[[str, AgentLink | HostError], None]
    ) -> dict[str, AgentLink | HostError]:
        """Connects to hosts concurrently.

        Returns the link or the error of each host, and also passes each result to `arrived` as soon as it is known.
        """

    def look(self, name: str, python: str | None) -> dict[str, Any]:
        """Returns the answer of a host to `host.facts`, and caches it for `known`.

        `python` is the interpreter for programs; None means the host's default.
        """
