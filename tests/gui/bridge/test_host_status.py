"""Tests of a host's status after several checks, and of the time at which the status last changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from torchyard_core.errors import AgentMissing, KeyUnknown, TorchyardError, Unreachable
from torchyard_core.fleet.host_check import HostCheck, failed_check
from torchyard_core.fleet.inventory import Host
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_gui.bridge.host_status import UNKNOWN, HostStatus

NOW = datetime(2026, 11, 20, 9, 41, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
GPU = Gpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", 81559)
READY = HostCheck("gpu-a", "ready", agent={"version": "0.1.0", "sha256": "0" * 64, "pid": 7})


def fresh() -> HostStatus:
    return HostStatus(Host(name="gpu-a"), HostFacts("gpu-a", gpus=(GPU,), checked=True))


def sample(*users: dict[str, Any], replicas: tuple[str, ...] = ()) -> dict[str, Any]:
    gpu = {"index": 0, "name": GPU.name, "memory_mb": 81559, "memory_used_mb": 60000, "utilisation": 92}
    processes = [{"pid": 4711, "user": "lee", "program": "python", "replica": None, **user} for user in users]
    return {"gpus": [{**gpu, "processes": processes, "problem": None}], "replicas": {name: {} for name in replicas}}


def test_a_new_host_is_unchecked() -> None:
    status = fresh()
    assert (status.state, status.since, status.answers, status.problems) == (UNKNOWN, None, False, [])
    assert status.gpus_in_use is None
    assert [gpu.users for gpu in status.gpus] == [None]


def test_a_check_that_finds_the_same_state_keeps_since_when_it_is_so() -> None:
    status = fresh().checked(READY, NOW)
    assert status.checked(READY, LATER).since == NOW
    refused = failed_check("gpu-a", "unreachable", Unreachable("gpu-a", "port 22 refused."))
    assert status.checked(refused, LATER).since == LATER


def test_a_host_that_falls_silent_is_unknown_since_it_was_last_heard_of() -> None:
    why = TorchyardError("the connection to gpu-a was lost.", code="lost")
    status = fresh().checked(READY, NOW).sampled(sample(), NOW).silent(why, LATER)
    assert (status.state, status.since, status.sample) == (UNKNOWN, LATER, None)
    assert status.problems[0].message == "the connection to gpu-a was lost."
    assert status.gpus[0].utilisation is None  # If no utilisation was measured, it is unknown and not zero.


def test_a_silent_host_that_answers_again_is_what_it_was() -> None:
    silent = fresh().checked(READY, NOW).silent(TorchyardError("lost"), NOW)
    status = silent.sampled(sample(), LATER)
    assert (status.state, status.since, status.problems) == ("ready", LATER, [])


def test_a_host_that_never_answered_cannot_fall_silent() -> None:
    down = fresh().checked(failed_check("gpu-a", "unreachable", Unreachable("gpu-a", "down.")), NOW)
    assert down.silent(TorchyardError("lost"), LATER) is down


def test_a_failed_check_drops_what_was_known_of_now() -> None:
    busy = fresh().checked(READY, NOW).sampled(sample({}), NOW)
    down = busy.checked(failed_check("gpu-a", "unreachable", Unreachable("gpu-a", "down.")), LATER)
    assert down.sample is None
    assert down.gpus[0].users is None


def test_the_user_of_a_gpu_is_a_replica_or_another_user() -> None:
    ours, theirs = {"replica": "mnist-7f3a/worker-0"}, {"pid": 12}
    status = fresh().checked(READY, NOW).sampled(sample(ours, theirs, replicas=("mnist-7f3a/ps-0",)), NOW)
    assert status.gpus[0].users == ("mnist-7f3a/worker-0", "lee: python (12)")
    assert status.gpus_in_use == 1
    assert status.beside_gpus == ["mnist-7f3a/ps-0"]


def test_a_key_may_be_that_of_a_bastion_on_the_way() -> None:
    error = KeyUnknown("bastion", "the host key of bastion is not known.", fingerprint="SHA256:x")
    status = fresh().checked(failed_check("gpu-a", error.state, error), NOW)
    assert status.blocking_host == "bastion"
    assert fresh().blocking_host == "gpu-a"


def test_a_missing_agent_is_told_from_one_that_fails() -> None:
    missing = AgentMissing("gpu-a", "there is no agent on gpu-a.")
    status = fresh().checked(failed_check("gpu-a", missing.state, missing), NOW)
    assert status.has_no_agent
    assert not replace(status, check=READY).has_no_agent
