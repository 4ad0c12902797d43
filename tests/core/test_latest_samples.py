"""Tests of the latest sample of each host, and of the values of replicas in it."""

from __future__ import annotations

import math

from torchyard_core.replica_metrics import LatestSamples, replica_values
from torchyard_core.slow_replicas import slow_replicas


def test_the_latest_sample_of_each_host_wins() -> None:
    latest = LatestSamples()
    assert latest.put("gpu-a", {"time": 1})
    assert not latest.put("gpu-b", {"time": 1})
    assert not latest.put("gpu-a", {"time": 2})
    assert latest.take() == {"gpu-a": {"time": 2}, "gpu-b": {"time": 1}}
    assert latest.take() == {}
    assert latest.put("gpu-a", {"time": 3})


def gpu(uuid: str, use: float | None) -> dict[str, object]:
    return {
        "uuid": uuid,
        "utilisation": use,
        "memory_used_mb": 1000,
        "memory_mb": 80000,
        "power_w": 300.0,
        "temperature_c": 60,
    }


def test_a_replica_of_several_gpus_has_their_mean_use_and_their_memory_in_all() -> None:
    sample = {
        "gpus": [gpu("A", 80), gpu("B", 100), gpu("C", 0)],
        "replicas": {"r1/worker-0": {"cpu": 50.0, "memory_mb": 2000}, "other/worker-0": {"cpu": 1.0}},
        "reports": {"r1/worker-0": {"step": 7, "loss": 0.5}},
    }
    found = replica_values(sample, "r1", {"worker-0": ["A", "B"], "worker-1": ["C"]})
    assert list(found) == ["worker-0"]  # worker-1 runs on another host.
    values = found["worker-0"]
    assert values["gpu"] == 90
    assert values["gpu_memory_mb"] == 2000
    assert values["power_w"] == 600
    assert (values["step"], values["loss"], values["throughput"]) == (7, 0.5, None)


def test_what_a_script_reports_by_a_name_of_its_own_never_stands_for_what_is_measured() -> None:
    reports = {"r1/worker-0": {"loss": 0.5, "gpu": -1.0, "accuracy": 0.9, "\x1b[2J": 1.0, "cpu": None}}
    sample = {"gpus": [gpu("A", 80)], "replicas": {"r1/worker-0": {"cpu": 50.0}}, "reports": reports}
    values = replica_values(sample, "r1", {"worker-0": ["A"]})["worker-0"]
    assert (values["gpu"], values["cpu"], values["loss"]) == (80, 50.0, 0.5)
    own = {name: value for name, value in values.items() if name.startswith("own.")}
    assert math.isnan(own.pop("own.cpu") or 0.0)  # JSON represents a value that is not finite as null.
    assert own == {"own.gpu": -1.0, "own.accuracy": 0.9}


def test_a_replica_whose_processes_have_ended_uses_an_unknown_amount_and_not_nothing() -> None:
    usage = {"cpu": 0.0, "memory_mb": 0.0, "processes": 0}
    sample = {"gpus": [gpu("A", 0)], "replicas": {"r1/worker-0": usage}, "reports": {"r1/worker-0": {"step": 7}}}
    values = replica_values(sample, "r1", {"worker-0": ["A"]})["worker-0"]
    assert {name for name, value in values.items() if value is not None} == {"step"}


def test_what_a_gpu_does_not_tell_is_unknown_and_not_zero() -> None:
    sample = {"gpus": [gpu("A", None)], "replicas": {"r1/worker-0": {"cpu": None, "memory_mb": 1}}}
    values = replica_values(sample, "r1", {"worker-0": ["A"], "worker-1": []})["worker-0"]
    assert values["gpu"] is None
    assert values["cpu"] is None
    assert values["step"] is None


def test_who_computes_far_longer_than_the_median_is_slow() -> None:
    steps = {f"worker-{index}": 0.5 for index in range(8)}
    assert slow_replicas(steps) == {}
    assert slow_replicas({**steps, "worker-3": 0.9}) == {"worker-3": 1.8}
    # The median of two replicas does not show which of them is slow.
    assert slow_replicas({"worker-0": 0.1, "worker-1": 1.0}) == {}
    assert slow_replicas({**steps, "worker-9": None}) == {}
