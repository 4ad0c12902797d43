"""Instructions of a run: the results of its decisions, which the primary carries out."""

from __future__ import annotations

from typing import NamedTuple, Union

from torchyard_agent.protocol.run_states import ReplicaState, RunState

JOIN = "join"
"""Timer: the members' time to connect to the primary is over."""
GPUS = "gpus"
"""Timer: the time for a scheduled run's GPUs to become free is over."""
CHOOSE = "choose"
"""Timer: the time to collect failures is over; one of them is chosen as the cause."""
GRACE = "grace"
"""Timer: the grace of the replicas that did not fail is over."""
GANG_GRACE = "gang_grace"
"""Timer: the same within a gang that will be restarted."""
EXPLAIN = "explain"
"""Timer: the time is over in which the loss of a server may be found as the cause of its trainers' failure."""
HOST_WAIT = "host_wait"
"""Timer: the wait for a lost host is over."""


class HostWait(NamedTuple):
    """The lost hosts that a restart waits for, the longest wait, and the cause of the restart."""

    hosts: tuple[str, ...]
    seconds: float
    cause: str


class RecordRunState(NamedTuple):
    """Journal a state of the run other than its end, on all hosts."""

    state: RunState
    reason: str
    waits: HostWait | None = None


class RecordReplicaState(NamedTuple):
    """Journal a replica's state, on the primary and on the replica's host."""

    replica: str
    host: str
    state: ReplicaState
    exit_code: int | None
    reason: str
    restarts: int = 0


class RecordGangRestart(NamedTuple):
    """Journal the restart of a gang, with its new generation and the cause, on all hosts."""

    gang: str
    generation: int
    cause: str


class NotifyUser(NamedTuple):
    """Run the user's notification command: the run cannot continue without help."""

    reason: str


class AcquireGpus(NamedTuple):
    """A host locks the run's GPUs and reports when it has them, or which process uses them."""

    host: str
    only_if_idle: bool


class StartRanks(NamedTuple):
    """All hosts spawn their ranks."""


class StartGang(NamedTuple):
    """The hosts of these replicas spawn their ranks as a new generation of the gang."""

    gang: str
    generation: int
    replicas: tuple[str, ...]


class ClearGang(NamedTuple):
    """End the processes that the replicas' ranks left behind on a host, and report when none is left."""

    host: str
    gang: str
    generation: int
    replicas: tuple[str, ...]
    grace_s: float


class EndRanks(NamedTuple):
    """Send SIGTERM to the replicas' ranks on a host, and SIGKILL to the remaining ones `grace_s` later."""

    host: str
    replicas: tuple[str, ...]
    grace_s: float


class Sweep(NamedTuple):
    """End all processes of the run on a host, and report when none is left."""

    host: str
    grace_s: float


class SetTimer(NamedTuple):
    """Feed TimerFired(timer, gang, generation) after this many seconds."""

    timer: str
    seconds: float
    gang: str = ""
    generation: int = 0


class FinishRun(NamedTuple):
    """Journal the run's terminal state: none of its processes is left on any host."""

    state: RunState
    reason: str


Instruction = Union[
    RecordRunState,
    RecordReplicaState,
    RecordGangRestart,
    NotifyUser,
    AcquireGpus,
    StartRanks,
    StartGang,
    EndRanks,
    ClearGang,
    Sweep,
    SetTimer,
    FinishRun,
]
