"""The states of hosts, and the number of hosts in each state, as shown on the pages and in the status bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication

if TYPE_CHECKING:
    from torchyard_gui.bridge.host_status import CheckedEntry


translate = QCoreApplication.translate


class HostState(StrEnum):
    """The state of a host. The state filter and the status bar list the states in the order of the members."""

    READY = "ready"
    DEGRADED = "degraded"
    """The host answers, but has problems."""
    NO_AGENT = "no agent"
    """The login works, but no agent is installed."""
    AGENT_FAILED = "agent failed"
    """The login works, but the agent cannot be installed, started or reached."""
    NO_PYTHON = "no python"
    KEY_UNKNOWN = "key unknown"
    KEY_CHANGED = "key changed"
    LOGIN_REFUSED = "login refused"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """The host has not been checked since the window was opened, or no longer answers."""

    @property
    def answers(self) -> bool:
        """Whether the host answers and can be used, either now or once an agent has been deployed."""
        return self in (HostState.READY, HostState.DEGRADED, HostState.NO_AGENT)

    @property
    def mark(self) -> str:
        """The name of the state's mark in `theme.marks`."""
        return _MARKS.get(self, "failed")


_MARKS = {
    HostState.READY: "ok",
    HostState.DEGRADED: "warning",
    HostState.NO_AGENT: "planned",
    HostState.KEY_UNKNOWN: "warning",
    HostState.UNKNOWN: "unknown",
}


def state_name(state: HostState) -> str:
    """Returns the name of a state in one or two words."""
    names = {
        HostState.READY: translate("HostState", "ready"),
        HostState.DEGRADED: translate("HostState", "degraded"),
        HostState.NO_AGENT: translate("HostState", "no agent"),
        HostState.AGENT_FAILED: translate("HostState", "agent failed"),
        HostState.NO_PYTHON: translate("HostState", "no Python"),
        HostState.KEY_UNKNOWN: translate("HostState", "key unknown"),
        HostState.KEY_CHANGED: translate("HostState", "key changed"),
        HostState.LOGIN_REFUSED: translate("HostState", "login refused"),
        HostState.UNREACHABLE: translate("HostState", "unreachable"),
        HostState.UNKNOWN: translate("HostState", "unknown"),
    }
    return names[state]


@dataclass(frozen=True)
class HostCount:
    """The hosts by state, and the hosts that are being checked. In the filter, clusters are counted too."""

    total: int
    by_state: dict[HostState, list[CheckedEntry]]
    """The hosts by state, in the order of HostState, without the hosts in `checking`. Empty states are omitted."""
    checking: list[CheckedEntry]
    """Hosts that are being checked and whose state is not known yet."""

    @property
    def answering(self) -> int:
        return sum(len(hosts) for state, hosts in self.by_state.items() if state.answers)


def count_hosts(hosts: Sequence[CheckedEntry]) -> HostCount:
    checking = [host for host in hosts if host.doing is not None and host.condition is HostState.UNKNOWN]
    known = [host for host in hosts if host not in checking]
    by_state = {state: [host for host in known if host.condition is state] for state in HostState}
    return HostCount(len(hosts), {state: found for state, found in by_state.items() if found}, checking)
