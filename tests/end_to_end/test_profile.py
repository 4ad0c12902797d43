"""Tests of `torchyard profile` on a host with three scripts: one that calls `distribute()`, a black box, and one that
fails.
"""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.running import topology
from tests.lab import Desktop, Lab

pytestmark = [pytest.mark.lab, pytest.mark.train]

POOLS = """
    strategy: {kind: all_reduce}
    pools:
      - {name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}
    program: {script: train.py, args: ["--size", "32"], checkpoint_dir: shared, env: {OMP_NUM_THREADS: "1"}}
"""
WITH_ROLES = """
    import sys, torch, torchyard_roles as ty

    cluster = ty.join()
    size = int(sys.argv[2])
    model = torch.nn.Linear(size, size)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = cluster.loader(torch.utils.data.TensorDataset(torch.randn(512, size)), batch_size=16)
    while True:
        for [batch] in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""
BLACK_BOX = """
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(40):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
"""
FAILS = """
    import torch

    raise ValueError("no data today")
"""


def test_scripts_are_measured_on_a_host(desktop: Desktop, lab3: Lab, warm_python: str) -> None:
    desktop.use(lab3, python=warm_python)
    folder = desktop.directory / "work"
    file = topology(folder, POOLS, train_py=WITH_ROLES)
    kept = desktop.directory / "profile.json"
    done = desktop.torchyard("profile", file, "-o", kept, "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    assert json.loads(kept.read_text()) == found
    assert [size["batch"] for size in found["sizes"]] == [16, 8, 4]
    assert found["host"] == "gpu-a"
    assert found["gradient_bytes"] == {"float32": 4 * (32 * 32 + 32)}
    assert not (folder / "shared").exists()

    topology(folder, POOLS, train_py=BLACK_BOX)
    done = desktop.torchyard("profile", file, "--host", "gpu-b")
    assert done.returncode == 0, done.stderr
    assert "train.py does not call distribute(), so it was measured as a black box" in done.stderr
    assert "gpu-b" in done.stdout

    topology(folder, POOLS, train_py=FAILS)
    done = desktop.torchyard("profile", file)
    assert done.returncode == 1
    assert "train.py failed on gpu-a while it was measured" in done.stderr
    assert "ValueError: no data today" in done.stderr

    done = desktop.torchyard("profile", file, "--host", "gpu-x")
    assert done.returncode == 2
    assert "the fleet has no host `gpu-x`" in done.stderr
