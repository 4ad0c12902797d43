"""Benchmark of the training roles with gradients on a GPU. If there is no GPU, nothing is measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Promise, record, show
from benchmarks.training import roles

AGENT = Path(__file__).parents[2] / "agent"
ONE_GPU = ["export CUDA_VISIBLE_DEVICES=0"]
"""Makes all hosts of the lab use this machine's first GPU, as if each host had a GPU of its own."""


def overhead() -> list[Promise]:
    """Measures the overhead of `distribute` over plain DDP on one GPU, where no communication hides the overhead."""
    done = subprocess.run(
        [sys.executable, roles.PROGRAMS / "one_gpu.py"],
        env={**os.environ, "PYTHONPATH": str(AGENT), "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    show("A step on one GPU", found, "ms")
    promises = [
        Promise(
            f"on a GPU, {model}: a step through distribute over plain DDP's",
            roles.by_round(found, f"{model}: distribute", f"{model}: plain DDP"),
            1 / 0.98,
        )
        for model in ("convolutions", "transformer")
    ]
    record("roles_on_gpus_overhead", found, promises)
    return promises


def turns(arms: roles.Arms) -> list[Promise]:
    """Measures two workers whose processes take turns on one GPU.

    Each collective waits for the turn of the other worker, and `distribute` has one more collective than plain DDP.
    There is no promise, because two workers with a GPU each would not wait in this way.
    """
    figures = arms.run(
        "phases.py", {"kind": "all_reduce"}, {"chief": 1, "worker": 1},
        *("--rounds", 6, "--steps", 20, "--batch", 4096),
    )  # fmt: skip
    ranks = list(figures.values())
    found = {name: [sum(turn) for turn in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}
    show("Two workers that take turns on one GPU, samples/s of both", found, "/s")
    record("roles_on_gpus_turns", found, [])
    return []


def main() -> list[Promise]:
    if shutil.which("nvidia-smi") is None:
        print("There is no NVIDIA GPU here: the roles on GPUs are not measured.")
        return []
    return [
        *overhead(),
        *roles.on_lab(2, turns, ONE_GPU),
        *roles.on_lab(8, lambda arms: roles.exchanges(arms, "roles_on_gpus_exchange"), ONE_GPU),
    ]


if __name__ == "__main__":
    main()
