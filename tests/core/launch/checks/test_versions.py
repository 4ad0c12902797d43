"""Tests of comparing versions between hosts: of Python, torch, CUDA and the driver."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import examples
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.versions import check_torch_builds, check_versions
from torchyard_core.launch.rank_assignment import plan

SAME: dict[str, Any] = {
    "python": {"path": "/opt/python", "version": "3.12.1"},
    "torch": "2.13.0",
    "torch_cuda": "12.6",
    "driver": "560.35.03",
    "driver_cuda": "12.6",
    "gpus": [{"index": 0}],
}


def messages(**hosts: dict[str, Any]) -> dict[str, str]:
    """Returns the checks' messages by the check's name. Each host is given by those of its facts that differ from
    `SAME`.
    """
    lines = check_versions({name: {**SAME, **different} for name, different in hosts.items()})
    assert all(line.ok and line.warning and line.hint for line in lines)
    return {line.name: line.message for line in lines}


def test_hosts_that_are_alike_raise_no_line() -> None:
    assert messages(a={}, b={}, c={"python": {"path": "/usr/bin/python3", "version": "3.12.9"}}) == {}


@pytest.mark.parametrize(
    ("different", "name", "message"),
    [
        ({"torch": "2.12.0"}, "torch", "b has torch 2.12.0; a and c have 2.13.0."),
        ({"torch": None}, "torch", "b has no torch; a and c have 2.13.0."),
        ({"python": {"version": "3.10.4"}}, "python", "b has Python 3.10; a and c have 3.12."),
        ({"torch_cuda": "12.4"}, "cuda", "b has torch for CUDA 12.4; a and c have 12.6."),
        ({"driver": "550.54.15"}, "driver", "b has NVIDIA driver 550.54.15; a and c have 560.35.03."),
    ],
)
def test_the_host_that_differs_is_named_first(different: dict[str, Any], name: str, message: str) -> None:
    assert messages(a={}, b=different, c={})[name] == message


def test_hosts_without_gpus_have_no_driver_to_compare() -> None:
    without = {"gpus": [], "driver": None, "torch_cuda": None, "driver_cuda": None}

    assert messages(a={}, b=without) == {}


def test_many_that_are_alike_are_counted() -> None:
    hosts: dict[str, dict[str, Any]] = {f"gpu-{number}": {} for number in range(9)}

    assert messages(**hosts, odd={"torch": "2.9.1"})["torch"] == "odd has torch 2.9.1; the other 9 hosts have 2.13.0."


def test_the_warning_of_a_driver_too_old_for_torch_names_both() -> None:
    old = {"torch_cuda": "13.0", "driver_cuda": "12.4", "driver": "550.54.15"}

    message = messages(a=old, b=old)["driver"]

    assert message == "torch on b is built for CUDA 13.0, but its driver 550.54.15 supports up to 12.4."


def builds(found: dict[str, Any], gpus: int = 2, **program: str) -> list[Check]:
    """Returns the checks of two hosts, one of which has the facts `found`; the replicas need GPUs."""
    pool = f"{{name: w, role: worker, replicas: 2, gpus: {gpus}, placement: spread}}"
    known = [examples.host("gpu-0", 8), examples.host("gpu-1", 8)]
    planned = plan(examples.topology(pool, **program), known)
    return check_torch_builds(planned, {"gpu-0": SAME, "gpu-1": {**SAME, **found}})


CPU_ONLY = {"torch": "2.13.0+cpu", "torch_cuda": None}


@pytest.mark.parametrize(("gpus", "shown"), [(1, "the run's GPU there."), (2, "the run's 2 GPUs there.")])
def test_torch_without_cuda_stops_a_run_with_gpus(gpus: int, shown: str) -> None:
    (line,) = builds(CPU_ONLY, gpus)
    assert (line.name, line.host, line.ok) == ("cuda", "gpu-1", False)
    assert line.message == (f"torch 2.13.0+cpu of /opt/python on gpu-1 was built without CUDA: it cannot use {shown}")
    assert "CUDA build" in line.hint


def test_torch_without_cuda_is_a_warning_where_setup_may_bring_another() -> None:
    (line,) = builds(CPU_ONLY, program="{script: train.py, setup: [source env/bin/activate]}")
    assert (line.ok, line.warning) == (True, True)


@pytest.mark.parametrize(
    ("found", "gpus", "program"),
    [
        ({}, 2, {}),
        (CPU_ONLY, 0, {}),
        ({"torch": None, "torch_cuda": None}, 2, {}),
        (CPU_ONLY, 2, {"program": "{launcher: command, command: [python3, x.py]}"}),
    ],
    ids=["with CUDA", "no GPUs wanted", "no torch, which another check reports", "not a torch program"],
)
def test_no_line_about_torchs_build(found: dict[str, Any], gpus: int, program: dict[str, str]) -> None:
    assert builds(found, gpus, **program) == []
