"""Tests of the checks of limits, memory, GPUs and remnants of earlier runs.

A failed check stops a launch. Failures and warnings have hints.
"""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.host_resources import check_conditions
from torchyard_core.topology.model import Launcher

MIB = 1 << 20
FINE: dict[str, Any] = {
    "limits": {"nofile": [1024, 1048576], "memlock": [8 * MIB, 8 * MIB]},
    "shm": {"free": 8 << 30, "total": 8 << 30},
    "infiniband": False,
    "gpus": [],
    "leftovers": [],
}
GPU: dict[str, Any] = {
    "uuid": "GPU-1",
    "index": 1,
    "name": "H100",
    "memory_mb": 80_000,
    "bus_id": "0000:3b:00",
    "ecc_errors": 0,
    "repair_pending": False,
    "repair_failed": False,
    "problem": None,
    "xids": [],
    "processes": [],
}


def lines(ranks: int = 4, launcher: Launcher = Launcher.TORCH, **measured: Any) -> list[Check]:
    return check_conditions("gpu-a", {**FINE, **measured}, launcher, ranks)


def of_gpu(**measured: Any) -> list[Check]:
    return [line for line in lines(gpus=[{**GPU, **measured}]) if line.name == "gpu"]


def one(found: list[Check], name: str) -> Check:
    [line] = [line for line in found if line.name == name]
    return line


def test_a_host_that_is_fine_is_all_green() -> None:
    found = lines(gpus=[GPU])

    assert {line.severity for line in found} == {"green"}
    assert [line.name for line in found] == ["limits", "shm", "gpu", "leftovers"]
    assert one(found, "gpu").message == "the chosen GPU is free, without ECC and XID errors"


# Tests of the checks of open files, lockable memory and shared memory


def test_a_low_limit_of_open_files_is_reported_with_the_way_to_raise_it() -> None:
    line = one(lines(limits={"nofile": [256, 4096], "memlock": [None, None]}), "limits")

    assert line.severity == "amber"
    assert "may open only 256 files; this run needs 1024" in line.message
    assert "`ulimit -n 1024` in `setup`" in line.hint


def test_a_large_run_wants_more_files() -> None:
    line = one(lines(1000, limits={"nofile": [1024, 1024], "memlock": [None, None]}), "limits")

    assert "this run needs 8000" in line.message
    assert "administrator" in line.hint


def test_memory_that_may_be_locked_matters_to_infiniband_alone() -> None:
    small = {"nofile": [None, None], "memlock": [65536, 65536]}

    assert one(lines(limits=small), "limits").severity == "green"
    line = one(lines(limits=small, infiniband=True), "limits")
    assert line.severity == "amber"
    assert "may lock only 64 KiB" in line.message


@pytest.mark.parametrize(("shm", "words"), [({"free": 64 * MIB, "total": 64 * MIB}, "only 64 MiB"), (None, "missing")])
def test_little_shared_memory_is_a_warning_under_launcher_torch_alone(shm: Any, words: str) -> None:
    line = one(lines(shm=shm), "shm")

    assert line.severity == "amber"
    assert words in line.message
    assert line.hint
    assert not [line for line in lines(shm=shm, launcher=Launcher.COMMAND) if line.name == "shm"]


# Tests of the checks of a replica's GPUs


def test_a_gpu_that_does_not_answer_stops_the_launch() -> None:
    [line] = of_gpu(problem="GPU 1 (H100) has fallen off the bus and does not answer.")

    assert line.severity == "red"
    assert "fallen off the bus" in line.message


def test_memory_that_can_no_longer_be_replaced_stops_the_launch() -> None:
    [line] = of_gpu(repair_failed=True)

    assert line.severity == "red"
    assert "no spare memory" in line.message


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"ecc_errors": 3}, "GPU 1 of gpu-a has had 3 uncorrectable memory errors (ECC)"),
        ({"ecc_errors": None}, "ECC errors of GPU 1 of gpu-a are unknown"),
        ({"repair_pending": True}, "replaced only by a reset"),
        ({"xids": [79, 79, 48]}, "has had XID errors since the host booted: 79, 48."),
        ({"xids": None}, "XID errors of GPU 1 of gpu-a are unknown"),
    ],
)
def test_what_a_gpu_has_suffered_is_a_warning_and_what_is_unknown_is_never_fine(measured: Any, words: str) -> None:
    [line] = of_gpu(**measured)

    assert line.severity == "amber"
    assert words in line.message


def test_who_uses_a_chosen_gpu_is_named() -> None:
    process = {"pid": 4711, "memory_mb": 500, "user": "kim", "program": "python"}

    [line] = of_gpu(processes=[process])

    assert line.severity == "amber"
    assert line.message == "GPU 1 of gpu-a is in use by kim (python, PID 4711, 500 MiB)."


def test_a_process_with_most_of_a_gpu_stops_the_launch() -> None:
    process = {"pid": 4711, "memory_mb": 60_000, "user": "unknown", "program": "unknown"}

    [line] = of_gpu(processes=[process])

    assert line.severity == "red"
    assert "an unknown user" in line.message
    assert "Choose another GPU" in line.hint


# Tests of the check for processes left by earlier runs


def test_leftovers_are_reported_whether_they_could_be_ended_or_not() -> None:
    base = {"run_id": "20260101-1", "ended": [], "left": [], "keeper": False}
    found = lines(
        leftovers=[
            {**base, "ended": [5, 6]},
            {**base, "left": [77]},
            {**base, "keeper": True},
        ]
    )

    messages = [line.message for line in found if line.name == "leftovers"]
    assert messages == [
        "2 processes that the earlier run 20260101-1 had left on gpu-a were ended.",
        "processes of the earlier run 20260101-1 on gpu-a cannot be ended: 77.",
        "the keeper of run 20260101-1 is still on gpu-a, long after the run has ended.",
    ]
    assert {line.severity for line in found if line.name == "leftovers"} == {"amber"}
