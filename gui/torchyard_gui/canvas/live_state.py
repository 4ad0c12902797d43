"""The live states of replicas and hosts as values for the canvas. If a new value equals the old one, nothing is
repainted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tint = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class ReplicaLiveState:
    """The state of a replica in a live run. If the replica has a problem, `tint` and `cause` describe it."""

    state: str
    """The state of the replica: "running", "starting", "pending", "failed", "unknown", "succeeded", "stopped", …"""
    meter: float | None = None
    """Load of the replica's GPUs or, if there are none, of its CPUs, from 0 to 1; None if the load is unknown."""
    metric: str = ""
    """A metric as text with its unit, such as "91 %" or "412/s"."""
    tint: Tint | None = None
    cause: str = ""
    """A short reason for the tint, such as "out of memory", or "1.8×" for a trainer that is 1.8 times too slow."""
    stale_since: str = ""
    """The time of the last report, such as "14:21"; empty while the replica's host answers."""
    restarts: int = 0
    """Number of restarts."""
    details: str = field(default="", compare=False)
    """The durations of the parts of a training step, for tool tips. Ignored in comparisons: chips do not show them."""

    @property
    def is_unknown(self) -> bool:
        return bool(self.stale_since) or self.state in ("unknown", "lost")


@dataclass(frozen=True, slots=True)
class HostLiveState:
    """The state of a host in a live run."""

    state: str = "ok"
    """The state of the host, as the name of its mark: "ok", "idle" or "unknown"."""
    since: str = ""
    """The time at which the state became unknown, such as "14:21"; empty if this time is not known."""
    note: str = ""
    """A short note that is shown at the right of the rack's header, in place of the GPU use."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """The two lines of text in the slot of each used or booked GPU, by GPU index."""
    held: Mapping[int, str] = field(default_factory=dict)
    """A sentence about the user of each used or booked GPU, by GPU index. The tool tip of the slot shows it."""
    name: str = ""
    """The name of the host's state on the Fleet page, such as `unreachable`; "" if the host is ready."""
    mark: str = ""
    """The mark in the rack's header. If it is "", the header shows the mark of `state`.

    The appearance of the host's chips always follows `state`.
    """

    @property
    def is_unknown(self) -> bool:
        return self.state in ("unknown", "lost")
