"""Trains until a given time, with a sleep in place of the computation.

Each process writes the time of each step to a file.

A line of steps-<replica>-<process>.txt contains the time and the number of the outer round. All hosts of the lab share
a clock.
"""

import argparse
import os
import time
from pathlib import Path

import torch

import torchyard_roles as ty


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", type=float, required=True, help="seconds since the epoch")
    parser.add_argument("--compute", type=float, required=True, help="seconds a step computes")
    parser.add_argument("--elements", type=int, default=250_000)
    args = parser.parse_args()

    cluster = ty.join()
    torch.set_num_threads(1)
    model = torch.nn.Linear(args.elements // 500, 500, bias=False)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    batch = torch.ones(1, args.elements // 500)
    name = f"steps-{os.environ['TORCHYARD_REPLICA']}-{os.getpid()}.txt"
    with (Path(os.environ["TORCHYARD_RUN_DIR"]) / name).open("w") as file:
        while time.time() < args.until:
            time.sleep(args.compute)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            print(time.time(), file=file, flush=True)


if __name__ == "__main__":
    main()
