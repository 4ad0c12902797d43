"""Events of a run: the inputs of its decisions.

Events and instructions are named tuples: two dozen dataclasses would add 19 ms to every keeper's start.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from torchyard_agent.protocol.messages import ReplicaPlan


class Cause(NamedTuple):
    """The reason why a rank ended, worded as the end of a sentence: "exited with 1: ValueError: bad"."""

    text: str
    consequence: bool = False
    """Whether this is a connection error. It is likely the result of another failure, so other failures are preferred
    as the cause.
    """
    curable: bool = True
    """Whether a restart can help; False if the program is missing, for example."""


class HostJoined(NamedTuple):
    """A host's keeper has connected to the primary and received its assignment."""

    host: str


class ReplicaSpawned(NamedTuple):
    """All ranks of a replica have started."""

    replica: str


class RankFailed(NamedTuple):
    """A rank has ended with a nonzero code, as the first one of its replica. Other ranks may still be running."""

    replica: str
    exit_code: int
    cause: Cause


class ReplicaEnded(NamedTuple):
    """All ranks of a replica have ended.

    The code is 0 if all of them ended with 0, else the code of the first rank that failed.
    """

    replica: str
    exit_code: int


class LinkBroken(NamedTuple):
    """The connection to a host's keeper has ended; the keeper may reconnect within the lease."""

    host: str


class LinkRestored(NamedTuple):
    """A host's keeper has reconnected within the lease."""

    host: str


class HostLost(NamedTuple):
    """The lease of a host's keeper has expired. If that keeper is still running, it ends its own ranks."""

    host: str
    why: str


class GangTrains(NamedTuple):
    """All ranks of a gang's generation have completed a step."""

    gang: str
    generation: int


class ReplicaReady(NamedTuple):
    """A lost replica that was started again has distributed its model, and waits for the state of its peers."""

    replica: str
    attempt: int
    """The number of the return, as in `instructions.StartReplica`."""


class BoundaryReached(NamedTuple):
    """All members of a gang are at a step boundary, where the replicas that are ready join them."""

    gang: str
    generation: int
    number: int
    """The number of the `instructions.AnnounceReturn` that the members answer."""


class ReplicasAdded(NamedTuple):
    """Workers are to be added to the run on a host, which has `join_within_s` to connect if it is not a member yet."""

    host: str
    replicas: tuple[ReplicaPlan, ...]
    join_within_s: float


class ReplicasWithdrawn(NamedTuple):
    """The addition of replicas was given up."""

    replicas: tuple[str, ...]
    why: str


class HostReturned(NamedTuple):
    """A lost host's keeper has reconnected and does not run any process of the run, so the host is usable again."""

    host: str


class GangCleared(NamedTuple):
    """A host no longer runs any process of a gang's generation."""

    host: str
    gang: str
    generation: int


class StartDue(NamedTuple):
    """The start time of a scheduled run has been reached.

    `only_if_idle` is true if no fresh calendar contains the run's booking: the run then starts only if no process uses
    its GPUs.
    """

    only_if_idle: bool


class GpusAcquired(NamedTuple):
    """A host of a scheduled run has locked the run's GPUs."""

    host: str


class GpusBusy(NamedTuple):
    """A scheduled run's GPUs are in use on this host, which tries again. `what` names the process that uses a GPU."""

    host: str
    what: str


class HostSwept(NamedTuple):
    """A host no longer runs any process of the run."""

    host: str


class StopRequested(NamedTuple):
    """The run has to end, for example at the user's request or its booking's end. `force` skips the grace period."""

    reason: str
    force: bool = False


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
