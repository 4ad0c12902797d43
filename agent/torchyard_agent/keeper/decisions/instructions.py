"""Instructions for the primary: the results of a run's decisions."""

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
"""Timer: the grace of the replicas that did not fail is over, in a gang that will be restarted."""
EXPLAIN = "explain"
"""Timer: the time is over in which the loss of a server may be found as the cause of its trainers' failure."""
HOST_WAIT = "host_wait"
"""Timer: the wait for a lost host is over."""


class HostWait(NamedTuple):
    """A restart's wait for lost hosts: the hosts, the longest wait in seconds, and the cause of the restart."""

    hosts: tuple[str, ...]
    seconds: float
    cause: str


class RecordRunState(NamedTuple):
    """Journal a state of the run on all hosts, except its terminal state."""

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
    """Run the user's notification command, because the run needs the user's help to continue."""

    reason: str


class AcquireGpus(NamedTuple):
    """Have a host lock the run's GPUs, and report either success or the process that uses a GPU."""

    host: str
    only_if_idle: bool


class StartRanks(NamedTuple):
    """Have all hosts spawn their ranks."""


class StartGang(NamedTuple):
    """Have the hosts of these replicas spawn their ranks as a new generation of the gang."""

    gang: str
    generation: int
    replicas: tuple[str, ...]


class ClearGang(NamedTuple):
    """Have a host end the processes that the replicas' ranks left behind, and report when none is left."""

    host: str
    gang: str
    generation: int
    replicas: tuple[str, ...]
    grace_s: float


class EndRanks(NamedTuple):
    """Have a host send SIGTERM to the replicas' ranks, and SIGKILL `grace_s` later to those still running."""

    host: str
    replicas: tuple[str, ...]
    grace_s: float


class Sweep(NamedTuple):
    """Have a host end all processes of the run, and report when none is left."""

    host: str
    grace_s: float


class SetTimer(NamedTuple):
    """Emit the event TimerFired(timer, gang, generation) after this number of seconds."""

    timer: str
    seconds: float
    gang: str = ""
    generation: int = 0


class FinishRun(NamedTuple):
    """Journal the run's terminal state, since no host runs a process of the run any longer."""

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
