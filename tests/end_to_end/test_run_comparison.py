"""Tests that a run is compared with its prediction, and that the comparison corrects the next prediction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.end_to_end.running import topology
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]

POOLS = """
    strategy: {kind: all_reduce}
    pools:
      - {name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}
    program: {script: train.py, env: {OMP_NUM_THREADS: "1"}}
"""
SLEEP_S, SLEEP_IN_RUNS_S = 0.1, 0.15
TRAIN = f"""
    import time, torch, torchyard_roles as ty

    cluster = ty.join()
    model = torch.nn.Linear(64, 64)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(40):
        time.sleep({SLEEP_S} if cluster.world_size == 1 else {SLEEP_IN_RUNS_S})
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
"""


def test_a_run_that_computes_longer_than_profiled_corrects_the_next_prediction(
    desktop: Desktop, lab3: Lab, warm_python: str
) -> None:
    desktop.use(lab3, python=warm_python)
    file = topology(desktop.directory / "work", POOLS, train_py=TRAIN)
    done = desktop.torchyard("profile", file)
    assert done.returncode == 0, done.stderr
    done = desktop.torchyard("run", file, "--detach")
    assert done.returncode == 0, done.stderr

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(desktop.torchyard("runs", "show", "last", "--json").stdout)
        return found

    wait_until(lambda: shown()["state"] == "succeeded")
    found = shown()["comparison"]
    assert found["same_files"]
    assert found["trainers"] == 2
    assert found["predicted"]["compute_s"] == pytest.approx(SLEEP_S, rel=0.2)
    assert found["measured"]["compute_s"] == pytest.approx(SLEEP_IN_RUNS_S, rel=0.2)
    assert "as the median of 2 trainers measured" in desktop.torchyard("runs", "show", "last").stdout

    done = desktop.torchyard("advise", file, "--json")
    corrected = json.loads(done.stdout)["current"]
    assert "All-reduce on" in done.stderr
    ignored = json.loads(desktop.torchyard("advise", file, "--without-history", "--json").stdout)["current"]
    ratio = found["measured"]["compute_s"] / found["predicted"]["compute_s"]
    assert corrected["parts"]["compute_s"] == pytest.approx(ratio * ignored["parts"]["compute_s"], rel=0.01)
