"""The events of a run, on which the decisions about the run are based.

Events and instructions are named tuples, because two dozen dataclasses would add 19 ms to every keeper's start.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from torchyard_agent.protocol.messages import ReplicaPlan


class Cause(NamedTuple):
    """The reason why a rank exited, worded as the end of a sentence: "exited with 1: ValueError: bad"."""

    text: str
    consequence: bool = False
    """Whether this is a connection error, which is probably the consequence of another failure.

    If there is another failure, it is preferred as the cause.
    """
    curable: bool = True
    """Whether a restart may help. It cannot, for example, if the program is missing."""


class HostJoined(NamedTuple):
    """A host's keeper has connected to the primary and received its assignment."""

    host: str


class ReplicaSpawned(NamedTuple):
    """All ranks of a replica have started."""

    replica: str


class RankFailed(NamedTuple):
    """A replica's first failure: one of its ranks has exited with a nonzero code. Its other ranks may be running."""

    replica: str
    exit_code: int
    cause: Cause


class ReplicaEnded(NamedTuple):
    """All ranks of a replica have exited.

    The exit code is that of the first rank that failed, or 0 if none failed.
    """

    replica: str
    exit_code: int


class LinkBroken(NamedTuple):
    """The connection to a host's keeper was lost. The keeper may reconnect within the lease."""

    host: str


class LinkRestored(NamedTuple):
    """A host's keeper has reconnected within the lease."""

    host: str


class HostLost(NamedTuple):
    """The lease of a host's keeper has expired, or the keeper leaves the run. A keeper that is alive ends its ranks."""

    host: str
    why: str
    has_left: bool = False
    """Whether the keeper has announced that it leaves the run, because the host's group job ends."""


class GangTrains(NamedTuple):
    """All ranks of a gang's generation have completed a step."""

    gang: str
    generation: int


class ReplicaReady(NamedTuple):
    """A lost replica has restarted and called `distribute()`, and is waiting for the state of its peers."""

    replica: str
    attempt: int
    """The number of the replica's return, as in `instructions.StartReplica`."""


class BoundaryReached(NamedTuple):
    """All members of a gang are at a step boundary, where replicas that are ready join them."""

    gang: str
    generation: int
    number: int
    """The number of the `instructions.AnnounceReturn` to which the members respond."""


class ReplicasAdded(NamedTuple):
    """A user has requested that workers be added to the run on a host.

    If the host is not a member yet, it has `join_within_s` to connect.
    """

    host: str
    replicas: tuple[ReplicaPlan, ...]
    join_within_s: float


class ReplicasWithdrawn(NamedTuple):
    """The addition of replicas has been cancelled."""

    replicas: tuple[str, ...]
    why: str


class HostReturned(NamedTuple):
    """A lost host's keeper has reconnected. No process of the run is left on the host, which is usable again."""

    host: str


class GangCleared(NamedTuple):
    """No process of a gang's generation is left on a host."""

    host: str
    gang: str
    generation: int


class StartDue(NamedTuple):
    """The start time of a scheduled run has been reached.

    `only_if_idle` is true if no fresh calendar contains the run's booking. In that case, the run starts only if no
    process uses its GPUs.
    """

    only_if_idle: bool


class GpusAcquired(NamedTuple):
    """A host has locked the GPUs of a scheduled run."""

    host: str


class GpusBusy(NamedTuple):
    """The GPUs of a scheduled run are in use on a host. The host keeps trying to lock them.

    `what` describes a process that uses one of the GPUs.
    """

    host: str
    what: str


class HostSwept(NamedTuple):
    """No process of the run is left on a host."""

    host: str


class StopRequested(NamedTuple):
    """The run must end, for example because the user has stopped it or its booking ends.

    `force` skips the grace period.
    """

    reason: str
    force: bool = False
    is_failure: bool = False
    """Whether the run ends as failed and not as stopped, for example a sweep without a complete trial."""
    within_s: float | None = None
    """An upper limit in seconds for the grace period. If it is None, the policy's grace period applies."""


class TimerFired(NamedTuple):
    """A timer that was set by `instructions.SetTimer` has expired."""

    timer: str
    gang: str = ""
    generation: int = 0


Event = Union[
    HostJoined,
    ReplicaSpawned,
    RankFailed,
    ReplicaEnded,
    LinkBroken,
    LinkRestored,
    HostLost,
    GangTrains,
    ReplicaReady,
    BoundaryReached,
    ReplicasAdded,
    ReplicasWithdrawn,
    HostReturned,
    GangCleared,
    StartDue,
    GpusAcquired,
    GpusBusy,
    HostSwept,
    StopRequested,
    TimerFired,
]
