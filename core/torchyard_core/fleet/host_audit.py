"""What was done to hosts, when and for whom: their agents' audits, for `hosts audit` and the window's Fleet page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import AgentRefused, HostError, TorchyardError

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import Link
    from torchyard_core.fleet.fleet import Fleet

Act = dict[str, Any]
"""`time`, `what`, `by`, `from`, `uid`, and what docs/protocol.md has of each `what`."""

READ_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class HostActs:
    """One host's acts, oldest first, or what kept us from them."""

    name: str
    acts: tuple[Act, ...] = ()
    error: TorchyardError | None = None

    def of(self, acts: Iterable[tuple[str, Act]]) -> HostActs:
        """With those of `acts` alone that are this host's."""
        return replace(self, acts=tuple(act for name, act in acts if name == self.name))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "acts": list(self.acts),
            "error": self.error.to_json() if self.error is not None else None,
        }


def acts_of(fleet: Fleet, name: str, last: int | None = None) -> HostActs:
    """The host's last acts; what is in the way is part of the answer. Nothing is put on a host without an agent."""
    try:
        return HostActs(name, read_acts(fleet.link(name, install=False), last))
    except (HostError, AgentRefused) as error:
        return HostActs(name, error=error)


def read_acts(link: Link, last: int | None = None) -> tuple[Act, ...]:
    """The last acts of the host at the other end, as many as its agent gives where `last` does not say.

    Raises a HostError or AgentRefused; AgentTooOld where its agent keeps no audit.
    """
    acts: list[Act] = link.call("audit.read", {} if last is None else {"last": last}, READ_TIMEOUT_S)
    return tuple(acts)


def by_time(hosts: Iterable[HostActs], last: int | None = None) -> list[tuple[str, Act]]:
    """The acts of all hosts, each with its host, oldest first; of more than `last` the newest."""
    acts = [(host.name, act) for host in hosts for act in host.acts]
    acts.sort(key=lambda one: str(one[1].get("time", "")))  # one form, in UTC: as text they are in order
    return acts if last is None else acts[-last:]
