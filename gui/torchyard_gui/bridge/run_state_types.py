"""What a run's picture is made of: replicas, moments, and what is different since the last time. No Qt."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from torchyard_core.replica_metrics import Ring

ENDED = ("succeeded", "failed", "stopped", "lost")
SERVING = ("ps", "reducer")


@dataclass
class Track:
    """One replica: where it is, how it is, and what it measured."""

    name: str
    host: str
    gpus: tuple[str, ...]
    """UUIDs."""
    ring: Ring
    state: str = "pending"
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0
    since: float | None = None
    """When the state began, seconds since 1970."""

    @property
    def role(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def index(self) -> int:
        return int(self.name.rpartition("-")[2])

    @property
    def serves(self) -> bool:
        """Whether it works for trainers, and takes no steps of its own."""
        return self.role in SERVING

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class Waiting:
    """A run that cannot start again before lost hosts are back, or its wait for them is over."""

    cause: str
    hosts: str
    until: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Moment:
    """One line of the run's timeline. The page finds the words."""

    time: float
    kind: str
    """run, replica, restart, asked, first_step, host_lost, host_back, connection_lost, connection_back."""
    state: str = ""
    replica: str = ""
    host: str = ""
    reason: str = ""
    generation: int = 0
    """Of a restart: the how many-th of its gang."""
    by: str = ""
    """Of what was asked (`state`: launch, stop or force): who did, `kim@laptop`; empty where nobody said."""
    waiting: Waiting | None = None
    """Of a run that restarts: for whom it waits."""

    def repeats(self, before: Moment) -> bool:
        """Whether it says nothing that the one before has not said: an end is told as a state, then with all it was."""
        alike = (self.kind, self.state, self.replica, self.host, self.generation, self.by)
        if alike != (before.kind, before.state, before.replica, before.host, before.generation, before.by):
            return False
        return self.kind != "run" or self.state in ENDED or self.reason == before.reason


def waiting_for(told: object) -> Waiting | None:
    """What a `run_state` of the journal tells of hosts that the run waits for (`waiting_for`), if it tells of any."""
    if not isinstance(told, dict):
        return None
    until = when(told.get("until"))
    hosts = " and ".join(map(str, told.get("hosts") or ()))
    return Waiting(str(told.get("cause") or ""), hosts, until) if until is not None and hosts else None


@dataclass
class Changes:
    """What is different since the last time."""

    replicas: set[str] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)
    run: bool = False
    """The run's own state, its reason, or what is known of its hosts."""
    shown: bool = False
    """The record came: replicas and plan are there now."""
    samples: bool = False

    def __bool__(self) -> bool:
        return bool(self.replicas or self.moments or self.run or self.shown or self.samples)


def when(time: object) -> float | None:
    """Seconds since 1970 of an RFC 3339 time, or of a number that is them already; None for what is neither."""
    if isinstance(time, (int, float)):
        return float(time)
    try:
        return datetime.fromisoformat(str(time)).timestamp() if time else None
    except ValueError:
        return None


_EXCEPTION = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))\b")
_SIGNAL = re.compile(r"\b(SIG[A-Z]+)\b")


def short_cause(reason: str, exit_code: int | None) -> str:
    """A replica's end in a word or two, for a chip: `out of memory`, `ValueError`, `SIGKILL`, `exit 1`."""
    lowered = reason.lower()
    if "out of memory" in lowered or "outofmemory" in lowered:
        return "out of memory"
    found = _EXCEPTION.findall(reason) or _SIGNAL.findall(reason)
    if found:
        return str(found[-1])
    return f"exit {exit_code}" if exit_code else ""
