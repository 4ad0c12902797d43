"""What the canvas is told of replicas and hosts: plain values, compared to see what changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tint = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class ReplicaLook:
    """How a live replica stands. Normal is neutral; what is tinted says its cause."""

    state: str
    """"running", "starting", "pending", "failed", "unknown", "succeeded", "stopped", …"""
    meter: float | None = None
    """Use of its GPUs, 0 to 1; None where nobody measured it."""
    metric: str = ""
    """Beside the meter, with its unit: "91 %", "412 pushes/s"."""
    tint: Tint | None = None
    cause: str = ""
    """Why it is tinted, in few words: "1.8×", "out of memory"."""
    stale_since: str = ""
    """When it was last heard of ("14:21"); empty while it answers."""
    restarts: int = 0
    """How often it was started again."""
    details: str = field(default="", compare=False)
    """What its steps were made of, for tool tips: nothing to draw a chip anew for."""

    @property
    def is_unknown(self) -> bool:
        return bool(self.stale_since) or self.state in ("unknown", "lost")


@dataclass(frozen=True, slots=True)
class HostLook:
    """How a host stands, where somebody looks after it."""

    state: str = "ok"
    """"ok", "unknown", "failed", "warning", "checking"."""
    since: str = ""
    """Since when it is unknown."""
    note: str = ""
    """In few words, instead of the count at the right of its header."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """Who holds which of its GPUs, in the two lines of a slot."""
    held: Mapping[int, str] = field(default_factory=dict)
    """The same in a sentence, for tool tips."""

    @property
    def is_unknown(self) -> bool:
        return self.state in ("unknown", "lost")
