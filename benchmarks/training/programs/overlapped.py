"""Measures computation with and without an exchange in the background. Writes the seconds to figures-<replica>.json.

The work consists of many small torch operations, whose Python code holds the interpreter lock, which the threads of the
exchange also need. Only the first worker computes, so that this worker has a core to itself; the other workers sleep
for the same time.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from steps import Flat

import torchyard_roles as ty


def compute(kernels: int) -> None:
    total = torch.zeros(64, 64)
    values = torch.ones(64, 64)
    for _ in range(kernels // 4):
        total = torch.relu(values * 0.5) + total * 0.25


def kernels_of(seconds: float) -> int:
    """Returns how many small operations this machine computes in the given time, from the fastest of several runs."""
    fastest = min(_timed(1000) for _ in range(20))
    return int(1000 * seconds / fastest)


def _timed(kernels: int) -> float:
    began = time.perf_counter()
    compute(kernels)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--compute", type=float, default=0.118, help="seconds a step computes")
    parser.add_argument("--rest", type=float, default=0.5, help="seconds after which an exchange is over")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=2)
    args = parser.parse_args()

    cluster = ty.join()
    torch.set_num_threads(1)
    model = Flat(args.megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = cluster.distribute(model, optimizer)
    computes = os.environ["TORCHYARD_REPLICA"] == "worker-0"
    kernels = kernels_of(args.compute)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    def work() -> None:
        if computes:
            compute(kernels)
        else:
            time.sleep(args.compute)
        model().backward()

    names = ("computing, nothing in exchange", "computing, the last step in exchange", "a step")
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(args.rounds + args.warm_up):
        work()
        step()  # The exchange of this step has begun.
        began = time.perf_counter()
        work()
        computed = time.perf_counter() - began
        step()
        whole = time.perf_counter() - began
        time.sleep(args.rest)
        began = time.perf_counter()
        work()
        alone = time.perf_counter() - began
        optimizer.zero_grad(set_to_none=False)
        if number >= args.warm_up:
            found["computing, nothing in exchange"].append(alone)
            found["computing, the last step in exchange"].append(computed)
            found["a step"].append(whole)
    folder = Path(os.environ["TORCHYARD_RUN_DIR"])
    (folder / f"figures-{os.environ['TORCHYARD_REPLICA']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
