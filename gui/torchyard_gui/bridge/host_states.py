"""The states of hosts as shown on the pages and in the status bar."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtCore import QCoreApplication

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
