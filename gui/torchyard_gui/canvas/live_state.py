"""Live state of replicas and hosts as values for the canvas. Equal values cause no repaint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tint = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class ReplicaLiveState:
    """State of a live replica. A replica with a problem has a tint and a cause."""

    state: str
    """"running", "starting", "pending", "failed", "unknown", "succeeded", "stopped", …"""
    meter: float | None = None
    """Use of its GPUs, 0 to 1; None if not measured."""
    metric: str = ""
    """Text beside the meter, with its unit: "91 %", "412 pushes/s"."""
    tint: Tint | None = None
    cause: str = ""
    """Short reason of the tint: "1.8×", "out of memory"."""
    stale_since: str = ""
    """When it was last heard ("14:21"); empty while it answers."""
    restarts: int = 0
    """Number of restarts."""
    details: str = field(default="", compare=False)
    """The parts of its steps, for tool tips; not compared, because chips do not show them."""

    @property
    def is_unknown(self) -> bool:
        return bool(self.stale_since) or self.state in ("unknown", "lost")


@dataclass(frozen=True, slots=True)
class HostLiveState:
    """State of a live host."""

    state: str = "ok"
    """"ok", "unknown", "failed", "warning", "checking"."""
    since: str = ""
    """Since when it is unknown."""
    note: str = ""
    """Short text in place of the count at the right of its header."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """Users of its GPUs, in the two lines of a slot."""
    held: Mapping[int, str] = field(default_factory=dict)
    """The same as sentences, for tool tips."""

    @property
    def is_unknown(self) -> bool:
        return self.state in ("unknown", "lost")
