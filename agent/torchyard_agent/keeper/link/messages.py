"""Messages between the primary's keeper and its members, and their encoding as JSON objects.

The primary sends instructions, members send events; both are used unencoded between the primary and the ranks of its
own host. `say` names a message's type on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Union

from torchyard_agent.keeper.decisions import events, instructions
from torchyard_agent.protocol.messages import ReplicaAssignment
from torchyard_agent.protocol.run_states import ReplicaState, RunState

Json = dict[str, Any]


class Assignment(NamedTuple):
    """A host's part of a run: its replicas, and what their ranks are started with."""

    replicas: list[ReplicaAssignment]
    host_wait_s: float
    """How long a member that lost the primary keeps calling it."""
    setup: list[str]
    secrets: dict[str, str]
    carry: bool
    """Whether checkpoints are replicated between the hosts."""
    spare_imports: list[str]
    max_restarts: int


class StartGeneration(NamedTuple):
    """The replicas' ranks are spawned as a new generation of their gang."""

    replicas: list[ReplicaAssignment]


class RunStateChanged(NamedTuple):
    state: RunState
    reason: str
    waiting_for: Json | None = None
    """`hosts`, `until` (RFC 3339) and `cause` of a restart that waits for lost hosts."""


class RunEnded(NamedTuple):
    """The run's end: the fields of the journal's `run_ended`."""

    ended: Json


class FetchCheckpoint(NamedTuple):
    """The member copies a checkpoint from the primary."""

    name: str


class BringCheckpoint(NamedTuple):
    """The member copies a checkpoint to the primary."""

    name: str


class CheckpointHeld(NamedTuple):
    """The newest complete checkpoint on a member; empty if it has none."""

    name: str


class CheckpointFetched(NamedTuple):
    """A member has a checkpoint now, or could not copy it because of `problem`."""

    name: str
    problem: str


class CheckpointNotBrought(NamedTuple):
    name: str
    problem: str


class ReplicaMetrics(NamedTuple):
    """A replica's latest metrics; `first` marks those of its first step."""

    replica: str
    metrics: Json
    first: bool


class ProcessesStuck(NamedTuple):
    """Processes of the run that SIGKILL does not end."""

    what: str


class ForwardedStop(NamedTuple):
    """A stop request that a member received; `asked` is its journal entry."""

    reason: str
    force: bool
    asked: Json | None = None


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
    RunEnded,
    FetchCheckpoint,
    BringCheckpoint,
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
    "ended": RunEnded,
    "fetch": FetchCheckpoint,
    "bring": BringCheckpoint,
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
}
_NAMES: dict[type, str] = {kind: name for table in (_FROM_PRIMARY, _FROM_MEMBER) for name, kind in table.items()}
_CONVERTED: dict[type, tuple[str, Callable[[Any], Any]]] = {
    RunStateChanged: ("state", RunState),
    instructions.RecordReplicaState: ("state", ReplicaState),
    events.RankFailed: ("cause", lambda fields: events.Cause(*fields)),
}
_ABOUT_RANKS = frozenset(("take_gpus", "go", "start", "clear", "end"))


def encode(message: FromPrimary | FromMember) -> Json:
    return {"say": _NAMES[type(message)], **message._asdict()}


def decode_from_primary(data: Json) -> FromPrimary:
    """Raises KeyError for an unknown message, TypeError for one with a missing field."""
    message: FromPrimary = _decode(_FROM_PRIMARY, data)
    return message


def decode_from_member(data: Json, host: str) -> FromMember:
    """`host`, the sender of the connection, replaces a host in the message.

    Raises KeyError for an unknown message, TypeError for one with a missing field.
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
    """Whether an encoded message starts or ends ranks, and so is void once its host was lost."""
    return data["say"] in _ABOUT_RANKS
