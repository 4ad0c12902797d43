"""The instructions that the decisions about a run give to the primary."""

from __future__ import annotations

from typing import NamedTuple, Union

from torchyard_agent.protocol.run_states import ReplicaState, RunState

JOIN = "join"
"""The timer that limits how long the members may take to connect to the primary."""
JOIN_ADDED = "join_added"
"""The timer that limits how long an added host may take to connect to the primary."""
GPUS = "gpus"
"""The timer that limits how long a scheduled run waits for its GPUs to become free."""
CHOOSE = "choose"
"""Timer for collecting failures. When it expires, one of the failures is chosen as the cause."""
GRACE = "grace"
"""Timer for the grace period of the remaining replicas after a failure that ends the run."""
GANG_GRACE = "gang_grace"
"""Timer for the grace period of a gang's remaining replicas after a failure for which the gang is restarted."""
EXPLAIN = "explain"
"""The timer that limits how long the restart of trainers is delayed to detect the loss of a server as the cause."""
HOST_WAIT = "host_wait"
"""The timer that limits how long a lost host may take to return."""
RETURN = "return"
"""Timer for the restart delay of lost replicas."""


class HostWait(NamedTuple):
    """The lost hosts for which a restart waits, the longest wait in seconds, and the cause of the restart."""

    hosts: tuple[str, ...]
    seconds: float
    cause: str


class RecordRunState(NamedTuple):
    """Writes a non-terminal state of the run to the journals of all hosts."""

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
    """Informs a gang's ranks that the gang continues without lost replicas, or with returned ones.

    All hosts journal the new membership.
    """

    gang: str
    generation: int
    number: int
    """The number of the membership in this generation."""
    members: tuple[str, ...]
    lost: tuple[str, ...]
    """All replicas that were lost in this generation and have not returned."""
    cause: str
    joined: int = 0
    """The number of the last AnnounceReturn whose replicas have become members or were lost again."""


class RecordWithdrawal(NamedTuple):
    """Journals that a replica was not added to the run."""

    replica: str
    why: str


class NotifyUser(NamedTuple):
    """Runs the user's notification command, because the run may need the user's action to continue."""

    reason: str


class AcquireGpus(NamedTuple):
    """Instructs a host to lock the run's GPUs.

    The host reports GpusBusy while a GPU is in use, and GpusAcquired when it has locked all GPUs.
    """

    host: str
    only_if_idle: bool


class StartRanks(NamedTuple):
    """Instructs all hosts to spawn their ranks."""


class StartGang(NamedTuple):
    """Instructs the hosts of `replicas` to start the replicas' ranks as a new generation of the gang."""

    gang: str
    generation: int
    replicas: tuple[str, ...]


class StartReplica(NamedTuple):
    """Instructs the host of a lost replica to start its ranks in the current generation of the gang."""

    gang: str
    generation: int
    replica: str
    attempt: int
    """The number of the replica's return, beginning with 1."""


class AnnounceReturn(NamedTuple):
    """Informs a gang's ranks that lost replicas are ready to join them at a step boundary."""

    gang: str
    generation: int
    number: int
    """The number of the announcement in this generation."""


class DismissHost(NamedTuple):
    """Ends the keeper of an added host, because no replica was added there."""

    host: str
    why: str


class ClearGang(NamedTuple):
    """Instructs a host to end the processes that ranks left behind, and to report when all of them have exited."""

    host: str
    gang: str
    """The name of the gang, or that of the replica if only one replica returns."""
    generation: int
    replicas: tuple[str, ...]
    grace_s: float


class EndRanks(NamedTuple):
    """Instructs a host to end ranks with SIGTERM, and those still running `grace_s` seconds later with SIGKILL."""

    host: str
    replicas: tuple[str, ...]
    grace_s: float
    is_stop: bool = False
    """Whether the run was stopped or has succeeded. The ranks then save and exit together after the same step."""


class Sweep(NamedTuple):
    """Instructs a host to end all processes of the run, and to report when none is left."""

    host: str
    grace_s: float


class SetTimer(NamedTuple):
    """Sets a timer. After `seconds`, the event TimerFired(timer, gang, generation) occurs."""

    timer: str
    seconds: float
    gang: str = ""
    generation: int = 0


class FinishRun(NamedTuple):
    """Writes the run's terminal state to the journal, when no process of the run is left on any connected host."""

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
