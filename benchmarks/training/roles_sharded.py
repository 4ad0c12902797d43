"""Benchmark of sharded models: a step, compared with a model sharded by hand, and how long a save stalls training.

The two sides of each ratio are measured in one run.

    .venv/bin/python -m benchmarks roles_sharded

Two ranks run under torchrun on the loopback interface.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Promise, record, show
from benchmarks.training.roles import PROGRAMS, by_round

AGENT = Path(__file__).parents[2] / "agent"
RANKS = 2


def main() -> list[Promise]:
    found = measure("sharded_steps.py")
    show("A step of a sharded model", found, "ms")
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        saves = measure("sharded_saves.py", TORCHYARD_CHECKPOINTS=folder)
    show("A save of a sharded model", saves, "ms")
    promises = [
        Promise(
            "a step through distribute over one sharded by hand", by_round(found, "distribute", "sharded by hand"), 1.02
        ),
        Promise("the stall of training by a save, as a share of the save", by_round(saves, "stall", "save"), 0.02),
    ]
    record("roles_sharded", {**found, **saves}, promises)
    return promises


def measure(program: str, **environment: str) -> dict[str, list[float]]:
    """Runs a program under torchrun, and returns the numbers that its first rank prints."""
    done = subprocess.run(
        [Path(sys.executable).with_name("torchrun"), f"--nproc-per-node={RANKS}", "--standalone", PROGRAMS / program],
        env={
            **os.environ,
            "PYTHONPATH": str(AGENT),
            "TORCHYARD_OPTIONS": json.dumps({"kind": "all_reduce", "shard": "all"}),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found
