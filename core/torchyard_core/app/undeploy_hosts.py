"""The use case "undeploy": removes the agent from hosts, together with the logs and outputs of past runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import AgentMissing, AgentRefused, HostError, TorchyardError
from torchyard_core.identity import desktop_identity

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet

UNDEPLOY_TIMEOUT_S = 60.0
LEAVE_WITHIN_S = 10.0
"""Maximum time in seconds to wait for the daemon to exit after it has answered."""


@dataclass(frozen=True)
class Removed:
    """The outcome of undeploying one host."""

    name: str
    node: str = ""
    answer: dict[str, Any] | None = None
    """The daemon's answer, with `removed` and `shared_with`; None if `error` is set.

    `removed` is the deleted folder, and `shared_with` lists other nodes that use the same folder.
    """
    error: TorchyardError | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None and not isinstance(self.error, AgentMissing)

    def sentence(self, gone: Collection[str] = ()) -> str:
        """Returns a message for the user about a host whose agent was removed.

        `gone` contains the nodes that were undeployed together with this host.
        """
        if self.answer is None:
            return f"{self.name}: there is no agent; nothing to remove."
        sharing = [node for node in self.answer["shared_with"] if node not in gone]
        if sharing:
            return (
                f"{self.name}: the agent was removed; {self.answer['removed']}/store stays, "
                f"because {', '.join(sharing)} shares this home."
            )
        return f"{self.name}: the agent and its files in {self.answer['removed']} were removed."


def undeploy_host(fleet: Fleet, name: str, removing: Callable[[], None] = lambda: None) -> Removed:
    """Removes the agent from a host. The agent refuses while a run is alive.

    `removing` is called when the host is connected, before the agent is removed.
    """
    try:
        link = fleet.link(name, install=False)
        removing()
        return Removed(name, link.hello["node"], _undeploy(link))
    except (HostError, AgentRefused) as error:
        return Removed(name, error=error)


def _undeploy(link: DaemonClient) -> dict[str, Any]:
    """Removes the agent, and waits up to `LEAVE_WITHIN_S` for the daemon's exit. Returns the daemon's answer."""
    left = threading.Event()
    link.on_close(left.set)
    answer: dict[str, Any] = link.call("undeploy", {"by": desktop_identity()}, UNDEPLOY_TIMEOUT_S)
    left.wait(LEAVE_WITHIN_S)
    return answer
