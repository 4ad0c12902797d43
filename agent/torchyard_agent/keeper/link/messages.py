"""Messages between the primary and the members, and their encoding as JSON objects.

The primary sends orders and changes of state, and members send events and reports. The primary and the rank supervisor
of its own host exchange the same messages without encoding. In an encoded message, the field `say` is the name of the
message's type, such as "spawned".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Union

from torchyard_agent.keeper.decisions import events, instructions
from torchyard_agent.protocol.messages import ReplicaAssignment
from torchyard_agent.protocol.run_states import ReplicaState, RunState

Json = dict[str, Any]


class Assignment(NamedTuple):
    """The assignment of a host: its replicas, and the parameters with which their ranks are started."""

    replicas: list[ReplicaAssignment]
    host_wait_s: float
    """The time in seconds for which a member tries to reach a lost primary."""
    setup: list[str]
    secrets: dict[str, str]
    carry: bool
    """Whether the keepers copy checkpoints between the hosts."""
    spare_imports: list[str]
    max_restarts: int


class StartGeneration(NamedTuple):
    """Order to start the replicas' ranks as a new generation of their gang."""

    replicas: list[ReplicaAssignment]


class RunStateChanged(NamedTuple):
    state: RunState
    reason: str
    waiting_for: Json | None = None
    """`hosts`, `until` (RFC 3339) and `cause` if a restart is waiting for lost hosts, otherwise None."""


class RunEnded(NamedTuple):
    """Report of the run's end, with the fields of the journal entry `run_ended`."""

    ended: Json


class FetchCheckpoint(NamedTuple):
    """Order to copy a checkpoint from the primary to the member."""

    name: str


class BringCheckpoint(NamedTuple):
    """Order to copy a checkpoint from the member to the primary."""

    name: str


class CheckpointHeld(NamedTuple):
    """Report of the newest complete checkpoint on a member. `name` is "" if the member has no checkpoint."""

    name: str


class CheckpointFetched(NamedTuple):
    """Report that a member has copied a checkpoint or, if `problem` is not "", could not copy it."""

    name: str
    problem: str


class CheckpointNotBrought(NamedTuple):
    name: str
    problem: str


class ReplicaMetrics(NamedTuple):
    """Report of the latest metrics of a replica. `first` is true for the metrics of its first step."""

    replica: str
    metrics: Json
    first: bool


class ProcessesStuck(NamedTuple):
    """Report of processes that are still running after SIGKILL."""

    what: str


class ForwardedStop(NamedTuple):
    """A stop request that a member forwards to the primary. `asked` is the request's journal entry.

    If `pause` is true, the run does not end, but waits until its scheduler starts it again.
    """

    reason: str
    force: bool
    asked: Json | None = None
    pause: bool = False
    within_s: float | None = None
    """An upper limit in seconds for the grace period. If it is None, the policy's grace period applies."""


class HostLeaves(NamedTuple):
    """Report that a host leaves the run because its group job ends. The member ends its ranks without an order."""

    why: str


class TrialRequest(NamedTuple):
    """Order to call the keeper of a sweep's trial on the member's host (`keeper.trial_keepers`)."""

    number: int
    method: str
    params: Json


class TrialAnswer(NamedTuple):
    """The answer to a TrialRequest: the result, or the error's `message`, `code` and `hint`."""

    number: int
    result: Any
    error: Json | None


FromPrimary = Union[
    Assignment,
    instructions.AcquireGpus,
    instructions.StartRanks,
    StartGeneration,
    instructions.ClearGang,
    instructions.EndRanks,
    instructions.Sweep,
    RunStateChanged,
    instructions.RecordReplicaState,
    instructions.RecordGangRestart,
    instructions.RecordMembership,
    RunEnded,
    FetchCheckpoint,
    BringCheckpoint,
    TrialRequest,
]
FromMember = Union[
    events.HostJoined,
    events.GpusAcquired,
    events.GpusBusy,
    events.ReplicaSpawned,
    events.RankFailed,
    events.ReplicaEnded,
    events.GangCleared,
    events.HostReturned,
    events.HostSwept,
    CheckpointHeld,
    CheckpointFetched,
    CheckpointNotBrought,
    ReplicaMetrics,
    ProcessesStuck,
    ForwardedStop,
    HostLeaves,
    TrialAnswer,
]

_FROM_PRIMARY: dict[str, Any] = {
    "share": Assignment,
    "take_gpus": instructions.AcquireGpus,
    "go": instructions.StartRanks,
    "start": StartGeneration,
    "clear": instructions.ClearGang,
    "end": instructions.EndRanks,
    "sweep": instructions.Sweep,
    "run_state": RunStateChanged,
    "replica_state": instructions.RecordReplicaState,
    "gang_restart": instructions.RecordGangRestart,
    "membership": instructions.RecordMembership,
    "ended": RunEnded,
    "fetch": FetchCheckpoint,
    "bring": BringCheckpoint,
    "trial": TrialRequest,
}
_FROM_MEMBER: dict[str, Any] = {
    "joined": events.HostJoined,
    "has_gpus": events.GpusAcquired,
    "gpus_held": events.GpusBusy,
    "spawned": events.ReplicaSpawned,
    "failed": events.RankFailed,
    "ended": events.ReplicaEnded,
    "cleared": events.GangCleared,
    "back": events.HostReturned,
    "gone": events.HostSwept,
    "holds": CheckpointHeld,
    "fetched": CheckpointFetched,
    "not_brought": CheckpointNotBrought,
    "report": ReplicaMetrics,
    "stuck": ProcessesStuck,
    "stop": ForwardedStop,
    "leaves": HostLeaves,
    "trial_answer": TrialAnswer,
}
_NAMES: dict[type, str] = {kind: name for table in (_FROM_PRIMARY, _FROM_MEMBER) for name, kind in table.items()}
_CONVERTED: dict[type, tuple[str, Callable[[Any], Any]]] = {
    RunStateChanged: ("state", RunState),
    instructions.RecordReplicaState: ("state", ReplicaState),
    events.RankFailed: ("cause", lambda fields: events.Cause(*fields)),
}
_ABOUT_RANKS = frozenset(("take_gpus", "go", "start", "clear", "end", "trial"))


def encode(message: FromPrimary | FromMember) -> Json:
    return {"say": _NAMES[type(message)], **message._asdict()}


def decode_from_primary(data: Json) -> FromPrimary:
    """Decodes a message from the primary.

    Raises:
        KeyError, TypeError, ValueError: The type of the message is unknown, or a field is missing or invalid.
    """
    message: FromPrimary = _decode(_FROM_PRIMARY, data)
    return message


def decode_from_member(data: Json, host: str) -> FromMember:
    """Decodes a message from the member on `host`. If the message contains a host, it is replaced by `host`.

    Raises:
        KeyError, TypeError: The type of the message is unknown, or a field is missing or invalid.
    """
    message: FromMember = _decode(_FROM_MEMBER, {**data, "host": host})
    return message


def _decode(kinds: Mapping[str, Any], data: Json) -> Any:
    kind = kinds[data["say"]]
    fields = {name: data[name] for name in kind._fields if name in data}
    if kind in _CONVERTED:
        name, convert = _CONVERTED[kind]
        fields[name] = convert(fields[name])
    return kind(**fields)


def is_about_ranks(data: Json) -> bool:
    """Returns whether an encoded message is an order for ranks or their GPUs.

    Such an order must be dropped if its host is lost.
    """
    return data["say"] in _ABOUT_RANKS
