"""Instructions for the primary: the results of a run's decisions."""

from __future__ import annotations

from typing import NamedTuple, Union

from torchyard_agent.protocol.run_states import ReplicaState, RunState

JOIN = "join"
"""Timer: the members' time to connect to the primary is over."""
JOIN_ADDED = "join_added"
"""Timer: the time of an added host to connect to the primary is over."""
GPUS = "gpus"
"""Timer: the time for a scheduled run's GPUs to become free is over."""
CHOOSE = "choose"
"""Timer: the time to collect failures is over; one of them is chosen as the cause."""
GRACE = "grace"
"""Timer: the grace of the replicas that did not fail is over."""
GANG_GRACE = "gang_grace"
"""Timer: the grace of the replicas that did not fail is over, in a gang that will be restarted."""
EXPLAIN = "explain"
"""Timer: the time to detect a server's loss as the cause of its trainers' failure is over."""
HOST_WAIT = "host_wait"
"""Timer: the wait for a lost host is over."""
RETURN = "return"
"""Timer: the pause before the start of lost replicas is over."""


class HostWait(NamedTuple):
    """A restart's wait for lost hosts: the hosts, the longest wait in seconds, and the cause of the restart."""

    hosts: tuple[str, ...]
    seconds: float
    cause: str


class RecordRunState(NamedTuple):
    """Writes a state of the run that is not terminal to the journals of all hosts."""

    state: RunState
    reason: str
    waits: HostWait | None = None


class RecordReplicaState(NamedTuple):
    """Writes a replica's state to the journals of the primary and of the replica's host."""

    replica: str
    host: str
    state: ReplicaState
    exit_code: int | None
    reason: str
    restarts: int = 0


class RecordGangRestart(NamedTuple):
    """Writes the restart of a gang, with its new generation and the cause, to the journals of all hosts."""

    gang: str
    generation: int
    cause: str


class RecordMembership(NamedTuple):
    """Informs a gang's ranks that it continues without lost replicas or with returned ones; all hosts journal this."""

    gang: str
    generation: int
    number: int
    """The number of the membership in this generation."""
    members: tuple[str, ...]
    lost: tuple[str, ...]
    """All replicas that were lost in this generation and have not returned."""
    cause: str
    joined: int = 0
    """The number of the last AnnounceReturn whose replicas are members, or were lost again."""


class RecordWithdrawal(NamedTuple):
    """Journal that a replica was not added to the run."""

    replica: str
    why: str


class NotifyUser(NamedTuple):
    """Runs the user's notification command, because the run may need the user's help to continue."""

    reason: str


class AcquireGpus(NamedTuple):
    """Instructs a host to lock the run's GPUs, and to report either success or the process that uses a GPU."""

    host: str
    only_if_idle: bool


class StartRanks(NamedTuple):
    """Instructs all hosts to spawn their ranks."""


class StartGang(NamedTuple):
    """Instructs the hosts of these replicas to spawn their ranks as a new generation of the gang."""

    gang: str
    generation: int
    replicas: tuple[str, ...]


class StartReplica(NamedTuple):
    """Instructs the host of a lost replica to spawn its ranks in the current generation of its gang."""

    gang: str
    generation: int
    replica: str
    attempt: int
    """The number of the return, beginning with 1."""


class AnnounceReturn(NamedTuple):
    """Informs a gang's ranks that lost replicas are ready to join them at a step boundary."""

    gang: str
    generation: int
    number: int
    """The number of the announcement in this generation."""


class DismissHost(NamedTuple):
    """Have the keeper of an added host end, since no replica was added there."""

    host: str
    why: str


class ClearGang(NamedTuple):
    """Instructs a host to end the processes that the replicas' ranks left behind, and to report when none is left."""

    host: str
    gang: str
    """The gang, or the replica if it returns alone."""
    generation: int
    replicas: tuple[str, ...]
    grace_s: float


class EndRanks(NamedTuple):
    """Instructs a host to send SIGTERM to the replicas' ranks, and SIGKILL `grace_s` later to those still running."""

    host: str
    replicas: tuple[str, ...]
    grace_s: float
    is_stop: bool = False
    """Whether the run was stopped or has succeeded, so that the ranks save and end together, after the same step."""


class Sweep(NamedTuple):
    """Instructs a host to end all processes of the run, and to report when none is left."""

    host: str
    grace_s: float


class SetTimer(NamedTuple):
    """Emits the event TimerFired(timer, gang, generation) after this number of seconds."""

    timer: str
    seconds: float
    gang: str = ""
    generation: int = 0


class FinishRun(NamedTuple):
    """Writes the run's terminal state to the journal, since no connected host runs a process of the run any longer."""

    state: RunState
    reason: str


Instruction = Union[
    RecordRunState,
    RecordReplicaState,
    RecordGangRestart,
    RecordMembership,
    RecordWithdrawal,
    NotifyUser,
    AcquireGpus,
    StartRanks,
    StartGang,
    StartReplica,
    AnnounceReturn,
    DismissHost,
    EndRanks,
    ClearGang,
    Sweep,
    SetTimer,
    FinishRun,
]
