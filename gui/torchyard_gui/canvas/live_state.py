"""Live state of replicas and hosts as values for the canvas. Equal values cause no repaint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tint = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class ReplicaLiveState:
    """The state of a replica in a live run. A tint and a cause show a problem."""

    state: str
    """The state of the replica: "running", "starting", "pending", "failed", "unknown", "succeeded", "stopped", …"""
    meter: float | None = None
    """Load of the replica's GPUs, or else of its CPUs, from 0 to 1; None if it is unknown."""
    metric: str = ""
    """A metric as text with its unit, such as "91 %" or "412/s"."""
    tint: Tint | None = None
    cause: str = ""
    """A short reason for the tint, such as "1.8×" or "out of memory"."""
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
    """The state of a host in a live run."""

    state: str = "ok"
    """The state of the host, as the name of its mark: "ok", "idle" or "unknown"."""
    since: str = ""
    """The time at which the state became unknown, such as "14:21"; empty if this time is not known."""
    note: str = ""
    """A short note that is shown at the right of the rack's header, in place of the GPU use."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """The user of each GPU that is in use, as the two lines in its slot, by GPU index."""
    held: Mapping[int, str] = field(default_factory=dict)
    """A sentence about the user of each GPU that is in use, for tool tips, by GPU index."""
    name: str = ""
    """The name of the host's state as on the Fleet page, such as `unreachable`, for tool tips; "" if it is ready."""
    mark: str = ""
    """The mark in the header, if it is not that of `state`.

    Even then, `state` determines how the host's chips look.
    """

    @property
    def is_unknown(self) -> bool:
        return self.state in ("unknown", "lost")
