"""Events of a run: the inputs of its decisions.

Named tuples, here and in `instructions`: two dozen dataclasses would add 19 ms to every keeper's start.
"""

from __future__ import annotations

from typing import NamedTuple, Union


class Cause(NamedTuple):
    """Why a rank ended, as the end of a sentence: "exited with 1: ValueError: bad"."""

    text: str
    consequence: bool = False
    """A connection error: likely the result of another replica's failure, so chosen last."""
    curable: bool = True
    """Whether a restart can help; False if the program is missing, for example."""


class HostJoined(NamedTuple):
    """A host's keeper has connected to the primary and received its assignment."""

    host: str


class ReplicaSpawned(NamedTuple):
    """All ranks of a replica have been started."""

    replica: str


class RankFailed(NamedTuple):
    """The first rank of a replica to end with a nonzero code; its other ranks may still run."""

    replica: str
    exit_code: int
    cause: Cause


class ReplicaEnded(NamedTuple):
    """No rank of the replica is left. The code is 0 if all ended with 0, else that of the first failed rank."""

    replica: str
    exit_code: int


class LinkBroken(NamedTuple):
    """The connection to a host's keeper ended; the keeper may reconnect within the lease."""

    host: str


class LinkRestored(NamedTuple):
    """A host's keeper has connected again within the lease."""

    host: str


class HostLost(NamedTuple):
    """The lease of a host's keeper expired; that keeper has ended its own ranks."""

    host: str
    why: str


class HostReturned(NamedTuple):
    """A lost host's keeper is connected again and no process of the run is left there: the host is usable."""

    host: str


class GangCleared(NamedTuple):
    """No process of a gang's generation is left on a host."""

    host: str
    gang: str
    generation: int


class StartDue(NamedTuple):
    """The start time of a scheduled run. `only_if_idle`: it is unknown whether the GPUs are booked for the run."""

    only_if_idle: bool


class GpusAcquired(NamedTuple):
    """A host of a scheduled run has locked the run's GPUs."""

    host: str


class GpusBusy(NamedTuple):
    """The GPUs of a scheduled run are in use; its host retries. `what` names the user of the GPU."""

    host: str
    what: str


class HostSwept(NamedTuple):
    """No process of the run is left on a host."""

    host: str


class StopRequested(NamedTuple):
    """The user, or the end of the run's booking, requires the run's end; with `force`, without grace."""

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
    HostReturned,
    GangCleared,
    StartDue,
    GpusAcquired,
    GpusBusy,
    HostSwept,
    StopRequested,
    TimerFired,
]
