"""Benchmark of learning: the validation loss of DiLoCo, compared with data-parallel training on the same amount of
text.

Every arm trains the script of `examples/text` on this computer with four worker groups: 2,000 steps of 4,096 characters
in all groups together, from the same parameters and with the same text. The arms of a seed run one after the other.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.lab import Desktop

from benchmarks.harness import Promise, record, show

SCRIPT = Path(__file__).parents[2] / "examples" / "text" / "train.py"
SEEDS = (0, 1, 2)
GROUPS = 4
WINDOWS = 128_000
"""2,000 steps of 4 groups with 16 windows each; a window has 64 characters."""
DILOCO = {"kind": "diloco", "inner_steps": 20, "warmup_steps": 400}
ARMS: dict[str, dict[str, Any]] = {
    "DDP": {"kind": "all_reduce"},
    "diloco": DILOCO,
    "diloco, int8": {**DILOCO, "wire": "int8"},
    "diloco, int4": {**DILOCO, "wire": "int4"},
    "diloco, no warm-up": {**DILOCO, "warmup_steps": 0},
}
"""The strategy of each arm."""
LIMITS = (
    ("diloco", "DDP", 1.0),
    ("diloco, no warm-up", "DDP", 5.0),
    ("diloco, int8", "diloco", 0.5),
    ("diloco, int4", "diloco", 1.0),
)
"""Limits: an arm, the arm that it is compared with, and by how many percent its validation loss may be higher."""


def train(desktop: Desktop, folder: Path, strategy: Mapping[str, Any], seed: int, windows: int = WINDOWS) -> float:
    """Trains in four processes. Returns the chief's validation loss, which all processes share after the last
    average.
    """
    topology = {
        "version": 1,
        "name": "learning",
        "strategy": dict(strategy),
        "pools": [{"name": "workers", "role": "worker", "replicas": GROUPS}],
        "program": {
            "script": SCRIPT.name,
            "workdir": str(SCRIPT.parent),
            "args": ["--windows", str(windows), "--seed", str(seed)],
            "env": {"OMP_NUM_THREADS": "1"},
            "max_restarts": 0,
        },
    }
    file = folder / "learning.yaml"
    file.write_text(yaml.safe_dump(topology, sort_keys=False))
    done = desktop.torchyard("run", "-y", file, timeout=3 * 3600)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    [loss] = re.findall(r"validation loss ([0-9.]+)$", done.stdout, re.MULTILINE)
    return float(loss)


def percent_above(found: Mapping[str, list[float]], arm: str, other: str) -> float:
    """Returns by how many percent the loss of `arm` is higher than the loss of `other`, as the mean over the seeds."""
    return 100 * statistics.mean(a / b - 1 for a, b in zip(found[arm], found[other], strict=True))


def main() -> list[Promise]:
    found: dict[str, list[float]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        desktop = Desktop(folder / "desktop")
        host = {"name": "this-computer", "local": True, "python": sys.executable, "agent_dir": str(folder / "agent")}
        desktop.fleet_file.write_text(yaml.safe_dump({"version": 1, "hosts": [host]}))
        try:
            for seed in SEEDS:
                for name, strategy in ARMS.items():
                    found[name].append(train(desktop, folder, strategy, seed))
                    print(f"  seed {seed}: {name}: validation loss {found[name][-1]:.4f}", flush=True)
        finally:
            desktop.torchyard("undeploy", "--yes")
            desktop.close()
    show("2,000 steps of 4,096 characters, 4 groups: validation loss per character", found, "nats")
    promises = [
        Promise(f"validation loss of {arm} above that of {other}", percent_above(found, arm, other), limit, "%")
        for arm, other, limit in LIMITS
    ]
    record("learning", found, promises)
    return promises


if __name__ == "__main__":
    main()
