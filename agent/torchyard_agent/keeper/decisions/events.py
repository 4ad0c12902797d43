"""What happens to a run (events), and what its keepers are then told to do (instructions). Values only.

Named tuples: two dozen dataclasses would take 19 ms to make, at every start of a keeper.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from torchyard_agent.keeper.processes.failure_diagnosis import Cause
from torchyard_agent.protocol.run_states import ReplicaState, RunState

JOIN = "join"
"""Timer: the members' time to find the primary is over."""
GPUS = "gpus"
"""Timer: a scheduled run's GPUs should have become free by now."""
CHOOSE = "choose"
"""Timer: the time to collect failures is over, one cause is chosen."""
GRACE = "grace"
"""Timer: those that did not fail had their time to end on their own."""
GANG_GRACE = "gang_grace"
"""The same within a gang that will be restarted."""
EXPLAIN = "explain"
"""Timer: the time is over in which it may come out which server's death made a gang of trainers fail."""
HOST_WAIT = "host_wait"
"""Timer: a lost host is waited for no longer."""


class Joined(NamedTuple):
    """A host's keeper has reached the primary and holds its share."""

    host: str


class Spawned(NamedTuple):
    """All ranks of a replica have been started."""

    replica: str


class RankFailed(NamedTuple):
    """The first of a replica's ranks to end with other than 0; its other ranks may still be there."""

    replica: str
    exit_code: int
    cause: Cause
    curable: bool = True
    """Whether starting again can help; not where the program is not even there."""


class Ended(NamedTuple):
    """No rank of the replica is left. 0 where all ended with 0, else the first failing rank's code."""

    replica: str
    exit_code: int


class LinkBroken(NamedTuple):
    """The connection to a host's keeper ended; it may come back within the lease."""

    host: str


class LinkBack(NamedTuple):
    host: str


class HostLost(NamedTuple):
    """A host's keeper was not heard for the length of the lease; its ranks have been stopped by its own keeper."""

    host: str
    why: str


class HostBack(NamedTuple):
    """A lost host's keeper is heard again, and nothing of the run is left there: it can be used."""

    host: str


class Cleared(NamedTuple):
    """Nothing of a gang's generation is left on a host."""

    host: str
    gang: str
    generation: int


class Due(NamedTuple):
    """A scheduled run's time has come. `only_if_idle`: nobody knows whether the GPUs are its own now."""

    only_if_idle: bool


class GpusTaken(NamedTuple):
    """A host holds the run's GPUs, for a run that was scheduled."""

    host: str


class GpusHeld(NamedTuple):
    """They are not free yet, and waited for."""

    host: str
    what: str


class HostGone(NamedTuple):
    """A host has been swept: nothing of the run is left there."""

    host: str


class StopAsked(NamedTuple):
    reason: str
    force: bool = False


class TimerFired(NamedTuple):
    timer: str
    gang: str = ""
    generation: int = 0


Event = Union[
    Joined,
    Spawned,
    RankFailed,
    Ended,
    LinkBroken,
    LinkBack,
    HostLost,
    HostBack,
    Cleared,
    Due,
    GpusTaken,
    GpusHeld,
    HostGone,
    StopAsked,
    TimerFired,
]


class Waits(NamedTuple):
    """For which lost hosts a run waits before it starts again, how long at most, and what had made it restart."""

    hosts: tuple[str, ...]
    seconds: float
    cause: str


class TellRunState(NamedTuple):
    """Journal a state of the run that is not its end, everywhere."""

    state: RunState
    reason: str
    waits: Waits | None = None


class TellReplicaState(NamedTuple):
    """Journal a replica's state, here and on its host."""

    replica: str
    host: str
    state: ReplicaState
    exit_code: int | None
    reason: str
    restarts: int = 0


class TellGangRestart(NamedTuple):
    """Journal that a gang starts again, as which generation and why."""

    gang: str
    generation: int
    cause: str


class AskForSomebody(NamedTuple):
    """The run cannot go on by itself for now: the user's notification says why."""

    reason: str


class Go(NamedTuple):
    """Every host spawns its ranks."""


class TakeGpus(NamedTuple):
    """A host locks the run's GPUs there, and says when it has them, or what is in the way."""

    host: str
    only_if_idle: bool


class StartGang(NamedTuple):
    """The hosts of these replicas spawn their ranks as a new generation of the gang."""

    gang: str
    generation: int
    replicas: tuple[str, ...]


class Clear(NamedTuple):
    """End what the replicas' ranks left behind on a host, and say when nothing is left."""

    host: str
    gang: str
    generation: int
    replicas: tuple[str, ...]
    grace_s: float


class EndRanks(NamedTuple):
    """SIGTERM to the replicas' ranks on a host, SIGKILL to what is left `grace_s` later."""

    host: str
    replicas: tuple[str, ...]
    grace_s: float


class Sweep(NamedTuple):
    """End everything of the run on a host, and say when nothing is left."""

    host: str
    grace_s: float


class Wait(NamedTuple):
    """TimerFired(timer, gang, generation), this many seconds from now."""

    timer: str
    seconds: float
    gang: str = ""
    generation: int = 0


class Finish(NamedTuple):
    """The run's terminal state; nothing of it is left anywhere."""

    state: RunState
    reason: str


Instruction = Union[
    TellRunState,
    TellReplicaState,
    TellGangRestart,
    AskForSomebody,
    TakeGpus,
    Go,
    StartGang,
    EndRanks,
    Clear,
    Sweep,
    Wait,
    Finish,
]
