"""Benchmark of `diloco` on slow links, compared with DDP: 60 MB, 4 workers, 200 Mbit/s, 0.5 s of computing per step.

A sleep simulates most of the computing; the rest is a small backward pass and the optimizer's step. With G groups, H =
50 inner steps, M bytes of parameters, bandwidth B and t seconds of computing, a step with blocking rounds takes at
least t + 2M(G−1)/(G·B·H), so with G = 4 computing is at most 0.874 of its time. The time spent computing is measured in
steps without an exchange.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.harness import Promise, record, show
from benchmarks.training.roles import MEGABYTES, Arms, on_lab

WORKERS = 4
RATE_MBIT = 200
COMPUTE_S = 0.5
INNER_STEPS = 50
ROUNDS = 2
"""Number of measured rounds. The first round is not measured, because connections are opened in it."""
DDP_STEPS = 6
ALONE = "without exchange"
ALONE_STEPS = 20

UTILISATION = {
    "diloco, float32": 0.85,
    "diloco, int8": 0.93,
    "diloco, streaming": 0.97,
}
"""Smallest fraction of a step's time that must be spent computing, by arm."""
ARMS: dict[str, dict[str, Any]] = {
    "diloco, float32": {},
    "diloco, int8": {"wire": "int8"},
    "diloco, streaming": {"fragments": 8, "overlap_steps": 1},
}
"""The settings of each arm in addition to its `inner_steps`."""


def step_times(arms: Arms, strategy: dict[str, Any], steps: int, warm_up: int) -> list[float]:
    """Returns each worker's mean step time in seconds."""
    sizes = ("--megabytes", MEGABYTES, "--compute", COMPUTE_S, "--steps", steps, "--warm-up", warm_up)
    found = arms.run("steps.py", strategy, {"worker": WORKERS}, *sizes)
    return [statistics.mean(whole for _, whole in figures) for figures in found.values()]


def measure(arms: Arms) -> list[Promise]:
    arms.shape(f"{RATE_MBIT}mbit")
    found = {"DDP": step_times(arms, {"kind": "all_reduce"}, DDP_STEPS, 2)}
    never = {"kind": "diloco", "inner_steps": 10 * ALONE_STEPS}
    found[ALONE] = step_times(arms, never, ALONE_STEPS, 2)
    for name, settings in ARMS.items():
        strategy = {"kind": "diloco", "inner_steps": INNER_STEPS, **settings}
        found[name] = step_times(arms, strategy, ROUNDS * INNER_STEPS, INNER_STEPS + 1)
    show(f"A step of {WORKERS} workers with {MEGABYTES:g} MB at {RATE_MBIT} Mbit/s, {COMPUTE_S:g} s computing", found)
    slowest = {name: max(values) for name, values in found.items()}
    promises = [Promise("diloco, float32: a step, of DDP's", slowest["diloco, float32"] / slowest["DDP"], 1 / 6)]
    for name, part in UTILISATION.items():
        promises.append(Promise(f"{name}: a step over its computing", slowest[name] / slowest[ALONE], 1 / part))
    record("low_communication", found, promises)
    return promises


def main() -> list[Promise]:
    return on_lab(WORKERS, measure)


if __name__ == "__main__":
    main()
