"""Tests of the encoding of the messages between keepers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchyard_agent.keeper.decisions import events, instructions
from torchyard_agent.keeper.decisions.events import Cause
from torchyard_agent.keeper.link import messages
from torchyard_agent.protocol.run_states import ReplicaState, RunState

FROM_PRIMARY: list[messages.FromPrimary] = [
    messages.Assignment([], 600.0, ["module load cuda"], {"TOKEN": "x"}, True, ["torch"], 2),
    instructions.AcquireGpus("gpu-b", True),
    instructions.StartRanks(),
    messages.StartGeneration([]),
    instructions.ClearGang("gpu-b", "trainers", 1, ("worker-0",), 0.5),
    instructions.EndRanks("gpu-b", ("worker-0",), 2.0),
    instructions.Sweep("gpu-b", 1.5),
    messages.RunStateChanged(RunState.RESTARTING, "lost", {"hosts": ["gpu-c"], "until": "…", "cause": "lost"}),
    instructions.RecordReplicaState("worker-0", "gpu-b", ReplicaState.LOST, None, "lost", 1),
    instructions.RecordGangRestart("trainers", 2, "lost"),
    messages.RunEnded({"state": "failed"}),
    messages.FetchCheckpoint("step-000000000001"),
    messages.BringCheckpoint("step-000000000001"),
    messages.TrialRequest(3, "prepare", {"run_id": "a.1"}),
]
FROM_MEMBER: list[messages.FromMember] = [
    events.HostJoined("gpu-b"),
    events.GpusAcquired("gpu-b"),
    events.GpusBusy("gpu-b", "GPU 0 is used by python of ann (PID 12)"),
    events.ReplicaSpawned("worker-0"),
    events.RankFailed("worker-0", 1, Cause("exited with 1", consequence=True, curable=False)),
    events.ReplicaEnded("worker-0", 1),
    events.GangCleared("gpu-b", "trainers", 1),
    events.HostReturned("gpu-b"),
    events.HostSwept("gpu-b"),
    messages.CheckpointHeld(""),
    messages.CheckpointFetched("step-000000000001", "the disk is full"),
    messages.CheckpointNotBrought("step-000000000001", "the disk is full"),
    messages.ReplicaMetrics("worker-0", {"step": 1}, True),
    messages.ProcessesStuck("PID 12 (python)"),
    messages.ForwardedStop("enough", False, None),
    messages.ForwardedStop("taken", False, None, True),
    messages.TrialAnswer(3, {"pid": 12}, None),
    messages.TrialAnswer(3, None, {"message": "no port is free", "code": "no_port", "hint": ""}),
]


def sent(message: Any) -> Any:
    return json.loads(json.dumps(messages.encode(message)))


def as_lists(message: Any) -> Any:
    """Returns the type and the fields of a message. Tuples become lists, because JSON has no tuples."""
    return type(message), [list(value) if isinstance(value, tuple) else value for value in message]


@pytest.mark.parametrize("message", FROM_PRIMARY, ids=lambda one: type(one).__name__)
def test_a_message_of_the_primary_survives_its_encoding(message: messages.FromPrimary) -> None:
    assert as_lists(messages.decode_from_primary(sent(message))) == as_lists(message)


@pytest.mark.parametrize("message", FROM_MEMBER, ids=lambda one: type(one).__name__)
def test_a_message_of_a_member_survives_its_encoding(message: messages.FromMember) -> None:
    assert messages.decode_from_member(sent(message), "gpu-b") == message


def test_a_member_can_only_report_for_its_own_host() -> None:
    assert messages.decode_from_member({"say": "gone", "host": "gpu-a"}, "gpu-b") == events.HostSwept("gpu-b")


def test_unknown_messages_and_missing_fields_are_errors() -> None:
    with pytest.raises(KeyError):
        messages.decode_from_member({"say": "sweep", "grace_s": 1.0}, "gpu-b")
    with pytest.raises(TypeError):
        messages.decode_from_primary({"say": "sweep"})


def test_orders_about_ranks_are_void_for_a_lost_host() -> None:
    void = [type(one).__name__ for one in FROM_PRIMARY if messages.is_about_ranks(messages.encode(one))]
    assert void == ["AcquireGpus", "StartRanks", "StartGeneration", "ClearGang", "EndRanks", "TrialRequest"]
