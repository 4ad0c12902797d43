"""Tests of the problems of a cluster that `hosts check` prints."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.fleet.cluster import Cluster

HPC = Cluster(name="hpc", kind="slurm")


def described(kill_wait: float | None, last_stop: dict[str, Any] | None) -> ClusterDescription:
    settings = {"KillWait": kill_wait, "ProctrackType": "proctrack/cgroup"}
    home = {"file_system": "nfs", "shared": True}
    answer = {"version": "22.05.8", "nodes": [{"count": 1}], "settings": settings, "home": home, "last_stop": last_stop}
    return ClusterDescription(answer, "")


@pytest.mark.parametrize(
    ("kill_wait", "seconds", "problem"),
    [
        (30.0, None, ""),
        (29.0, None, "hpc kills jobs 29 s after it asks them to end (KillWait)."),
        (5.0, 4.0, ""),
        (30.0, 42.0, "hpc kills jobs 30 s after it asks them to end (KillWait), but run r took 42 s to save and end."),
        (None, 42.0, ""),
    ],
)
def test_kill_wait_is_compared_with_the_last_run_that_was_interrupted(
    kill_wait: float | None, seconds: float | None, problem: str
) -> None:
    last = None if seconds is None else {"run_id": "r", "seconds": seconds}
    assert [one.message for one in described(kill_wait, last).problems(HPC)] == ([problem] if problem else [])
