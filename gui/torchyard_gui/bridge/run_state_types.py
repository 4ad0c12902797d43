"""Data types for the state of a run: replicas, timeline events and changes. Independent of Qt."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from torchyard_core.replica_metrics import TimeSeries

ENDED = ("succeeded", "failed", "stopped", "lost")
SERVING = ("ps", "reducer")


@dataclass
class ReplicaStatus:
    """The placement, the state and the measured values of one replica."""

    name: str
    host: str
    gpus: tuple[str, ...]
    """The UUIDs of the GPUs."""
    ring: TimeSeries
    state: str = "pending"
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0
    since: float | None = None
    """The time at which the state began, in seconds since 1970; None if it is unknown."""

    @property
    def role(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def index(self) -> int:
        return int(self.name.rpartition("-")[2])

    @property
    def serves(self) -> bool:
        """Whether the replica serves trainers and computes no steps itself."""
        return self.role in SERVING

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class WaitingForHosts:
    """A restart that waits until the lost hosts answer again, or until a time limit."""

    cause: str
    hosts: str
    until: float
    """The time at which the wait ends at the latest, in seconds since 1970."""


@dataclass(frozen=True)
class TimelineEvent:
    """One entry of the timeline. The Runs page formats it."""

    time: float
    kind: str
    """The kind of the event: run, replica, restart, membership, withdrawal, asked, first_step, host_lost,
    host_back, checkpoint or checkpoint_copied.
    """
    state: str = ""
    replica: str = ""
    host: str = ""
    reason: str = ""
    generation: int = 0
    """The new generation of the gang, for a restart."""
    by: str = ""
    """The user who requested what `state` names (launch, stop, force or grow), such as `kim@laptop`; "" if unknown."""
    waiting: WaitingForHosts | None = None
    """The hosts that a run waits for before it restarts."""
    step: int = 0
    """The step of a checkpoint or of a membership."""
    remaining: int = 0
    """The number of workers that are not lost, for a membership."""
    workers: int = 0
    """The number of workers before any was lost, for a membership."""

    def repeats(self, before: TimelineEvent) -> bool:
        """Returns whether the event repeats the previous event `before`.

        The end of a run or replica is first reported as a state, and then again with details.
        """
        alike = (self.kind, self.state, self.replica, self.host, self.generation, self.by, self.step)
        if alike != (
            *(before.kind, before.state, before.replica, before.host, before.generation, before.by, before.step),
        ):
            return False
        return self.kind != "run" or self.state in ENDED or self.reason == before.reason

    def continues_wait(self, before: TimelineEvent) -> bool:
        """Returns whether the event only updates the reason or expected start of the wait that `before` reported."""
        return self.kind == before.kind == "run" and self.state == before.state == "waiting"


def waiting_for(value: object) -> WaitingForHosts | None:
    """Parses the field `waiting_for` of a `run_state` event. Returns None if it is absent or incomplete."""
    if not isinstance(value, dict):
        return None
    until = when(value.get("until"))
    hosts = " and ".join(map(str, value.get("hosts") or ()))
    return WaitingForHosts(str(value.get("cause") or ""), hosts, until) if until is not None and hosts else None


@dataclass
class RunChanges:
    """The changes of a run's state since the window was last notified."""

    replicas: set[str] = field(default_factory=set)
    moments: list[TimelineEvent] = field(default_factory=list)
    run: bool = False
    """Whether the state of the run, the reason for it, or the set of hosts that answer has changed."""
    shown: bool = False
    """Whether the run's record, with its replicas and plan, has arrived."""
    samples: bool = False

    def __bool__(self) -> bool:
        return bool(self.replicas or self.moments or self.run or self.shown or self.samples)


def when(time: object) -> float | None:
    """Converts RFC 3339 text or a number to seconds since 1970. Returns None for other values."""
    if isinstance(time, (int, float)):
        return float(time)
    try:
        return datetime.fromisoformat(str(time)).timestamp() if time else None
    except ValueError:
        return None


_EXCEPTION = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))\b")
_SIGNAL = re.compile(r"\b(SIG[A-Z]+)\b")


def short_cause(reason: str, exit_code: int | None) -> str:
    """Returns the cause of a replica's end in a few words, for its chip.

    Examples are `out of memory`, `ValueError`, `SIGKILL` and `exit 1`.
    """
    lowered = reason.lower()
    if "out of memory" in lowered or "outofmemory" in lowered:
        return "out of memory"
    found = _EXCEPTION.findall(reason) or _SIGNAL.findall(reason)
    if found:
        return str(found[-1])
    return f"exit {exit_code}" if exit_code else ""
