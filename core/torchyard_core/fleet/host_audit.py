"""Audits of hosts: the recorded acts of their agents, for `hosts audit` and the window's Hosts page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import AgentRefused, HostError, TorchyardError

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet

Act = dict[str, Any]
"""`time`, `what`, `by`, `from`, `uid`, and further keys by `what` (docs/protocol.md)."""

READ_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class HostAudit:
    """One host's acts, oldest first, or the error of reading them."""

    name: str
    acts: tuple[Act, ...] = ()
    error: TorchyardError | None = None

    def of(self, acts: Iterable[tuple[str, Act]]) -> HostAudit:
        """A copy that holds those of `acts` that belong to this host."""
        return replace(self, acts=tuple(act for name, act in acts if name == self.name))

    def to_json(self) -> dict[str, Any]:
        error = self.error.to_json() if self.error is not None else None
        return {"name": self.name, "acts": list(self.acts), "error": error}


def audit_of(fleet: Fleet, name: str, last: int | None = None) -> HostAudit:
    """The host's last acts, or the error. Does not install an agent."""
    try:
        return HostAudit(name, read_audit(fleet.link(name, install=False), last))
    except (HostError, AgentRefused) as error:
        return HostAudit(name, error=error)


def read_audit(link: DaemonClient, last: int | None = None) -> tuple[Act, ...]:
    """Reads the last acts of a host, by default all. Raises HostError, AgentRefused, or AgentTooOld without audit."""
    acts: list[Act] = link.call("audit.read", {} if last is None else {"last": last}, READ_TIMEOUT_S)
    return tuple(acts)


def by_time(hosts: Iterable[HostAudit], last: int | None = None) -> list[tuple[str, Act]]:
    """The acts of all hosts as (host, act), oldest first, limited to the newest `last`."""
    acts = [(host.name, act) for host in hosts for act in host.acts]
    acts.sort(key=lambda one: str(one[1].get("time", "")))  # times are UTC in one format, so they sort as text
    return acts if last is None else acts[-last:]
