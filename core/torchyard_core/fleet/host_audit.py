"""Audit logs of hosts: the actions that agents have recorded. `hosts audit` and the window's Fleet page show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import AgentRefused, HostError, TorchyardError

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet

Act = dict[str, Any]
"""A recorded action: `time`, `what`, `by`, `from`, `uid`, and further keys that depend on `what` (docs/protocol.md)."""

READ_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class HostAudit:
    """The recorded actions of a host, oldest first, or the error that prevented reading them."""

    name: str
    acts: tuple[Act, ...] = ()
    error: TorchyardError | None = None

    def of(self, acts: Iterable[tuple[str, Act]]) -> HostAudit:
        """Returns a copy with the actions of this host in `acts`, which contains pairs of (host, action)."""
        return replace(self, acts=tuple(act for name, act in acts if name == self.name))

    def to_json(self) -> dict[str, Any]:
        error = self.error.to_json() if self.error is not None else None
        return {"name": self.name, "acts": list(self.acts), "error": error}


def audit_of(fleet: Fleet, name: str, last: int | None = None) -> HostAudit:
    """Returns the newest actions of a host, or the error. `last` limits their number. Does not install an agent."""
    try:
        return HostAudit(name, read_audit(fleet.link(name, install=False), last))
    except (HostError, AgentRefused) as error:
        return HostAudit(name, error=error)


def read_audit(link: DaemonClient, last: int | None = None) -> tuple[Act, ...]:
    """Reads the newest actions of a host. `last` limits their number; by default, all actions are read.

    Raises HostError or AgentRefused if the actions cannot be read, or AgentTooOld if the agent's version keeps no audit
    log.
    """
    acts: list[Act] = link.call("audit.read", {} if last is None else {"last": last}, READ_TIMEOUT_S)
    return tuple(acts)


def by_time(hosts: Iterable[HostAudit], last: int | None = None) -> list[tuple[str, Act]]:
    """Returns the actions of all hosts as (host, action), oldest first, limited to the `last` newest."""
    acts = [(host.name, act) for host in hosts for act in host.acts]
    # Times are in UTC and in one format, so sorting them as text also sorts them by time.
    acts.sort(key=lambda one: str(one[1].get("time", "")))
    return acts if last is None else acts[-last:]
