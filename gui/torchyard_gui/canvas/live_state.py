"""Live state of replicas and hosts as values for the canvas. Equal values cause no repaint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tint = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class ReplicaLiveState:
    """State of a live replica. A tint and a cause show a problem."""

    state: str
    """The state of the replica: "running", "starting", "pending", "failed", "unknown", "succeeded", "stopped", …"""
    meter: float | None = None
    """Load of the replica's GPUs, or else of its CPUs, from 0 to 1; None if it is unknown."""
    metric: str = ""
    """A metric as text with its unit, such as "91 %" or "412/s"."""
    tint: Tint | None = None
    cause: str = ""
    """Short reason for the tint, such as "1.8×" or "out of memory"."""
    stale_since: str = ""
    """The time of the last report, such as "14:21"; empty while the replica's host answers."""
    restarts: int = 0
    """Number of restarts."""
    details: str = field(default="", compare=False)
    """The parts of a step with their values, for tool tips. Not compared, because chips do not show them."""

    @property
    def is_unknown(self) -> bool:
        return bool(self.stale_since) or self.state in ("unknown", "lost")


@dataclass(frozen=True, slots=True)
class HostLiveState:
    """State of a live host."""

    state: str = "ok"
    """The state of the host, as the name of its mark: "ok", "idle" or "unknown"."""
    since: str = ""
    """The time since which the state is unknown, such as "14:21"; empty if that time is not known."""
    note: str = ""
    """Short text that replaces the use of GPUs at the right of the rack's header."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """Users of the host's GPUs by GPU index, each as the two lines of text in a slot."""
    held: Mapping[int, str] = field(default_factory=dict)
    """Sentences about the users of the host's GPUs by GPU index, for tool tips."""
    name: str = ""
    """The name of the host's state as on the Fleet page, such as `unreachable`, for tool tips; "" if it is ready."""
    mark: str = ""
    """The mark in the header, if it differs from `state`.

    In any case, `state` determines the appearance of the host's chips.
    """

    @property
    def is_unknown(self) -> bool:
        return self.state in ("unknown", "lost")
