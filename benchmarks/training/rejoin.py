"""Benchmark of a lost worker's return: the time to receive another worker's state, relative to a bare transfer of as
many bytes.

Three workers on three hosts of the lab have a model of 60 MB, of which a small part is trained. The last worker is
killed and started again. From the end of its distribute() to the end of its first step it waits for the others' next
step boundary, receives parameters and optimizer state, and takes a step. The bound is the size of this state in bytes,
divided by the links' rate.
"""

from __future__ import annotations

import json

from benchmarks.harness import Promise, record, show
from benchmarks.training.roles import MEGABYTES, Arms, on_lab

WORKERS = 3
RATE_MBIT = 200
RETURNS = 3
LIMIT = 1.3


def measure(arms: Arms) -> list[Promise]:
    arms.shape(f"{RATE_MBIT}mbit")
    strategy = {"kind": "all_reduce", "on_worker_loss": "continue"}
    took: list[float] = []
    bounds: list[float] = []
    for _ in range(RETURNS):
        options = {"max_restarts": 1, "failure_grace_s": 1}
        [file] = arms.files("return.json", "rejoining.py", strategy, {"worker": WORKERS}, MEGABYTES, **options)
        found = json.loads(file.read_text())
        took.append(found["seconds"])
        bounds.append(found["bytes"] * 8 / (RATE_MBIT * 1e6))
    values = {"return of a worker": took, "its state over the rate": bounds}
    show(f"a worker that was lost returns, {MEGABYTES:g} MB at {RATE_MBIT} Mbit/s", values)
    worst = max(seconds / bound for seconds, bound in zip(took, bounds, strict=True))
    promises = [Promise("the return of a worker after its process start, over its bytes", worst, LIMIT)]
    record("rejoin", values, promises)
    return promises


def main() -> list[Promise]:
    return on_lab(WORKERS, measure)


if __name__ == "__main__":
    main()
