"""Trains the same model in turns: with plain DDP, with `distribute`, and in each process independently.

All turns are made one after another in a single launch, so that noise on the machine affects all of them. Every rank
writes the samples per second of its turns, by arm, to figures-<replica>.json in the folder of the run.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchyard_roles as ty

BATCH = {"compute": 128, "communication": 32}
"""Batch sizes with which a step computes for about a fifth of a second on a core, or for almost no time."""


def compute_bound() -> nn.Module:
    """Returns a model with a lot of arithmetic and 0.3 MB of parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def communication_bound() -> nn.Module:
    """Returns a model with little arithmetic and 8 MB of parameters."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 1800), nn.ReLU(), nn.Linear(1800, 920))


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, device: torch.device) -> Callable[[], None]:
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["compute", "communication"], default="compute")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, help="samples a step of one worker")
    args = parser.parse_args()

    cluster = ty.join()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make = compute_bound if args.model == "compute" else communication_bound
    batch = args.batch or BATCH[args.model]
    device = cluster.device

    def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make().to(device)
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    alone = trainer(*pair(), batch, device)
    by_hand, optimizer = pair()
    ids = [device.index] if device.type == "cuda" else None
    plain = trainer(DistributedDataParallel(by_hand, device_ids=ids), optimizer, batch, device)
    ours = trainer(*cluster.distribute(*pair()), batch, device)

    turns = {"alone": alone, "plain DDP": plain, "distribute": ours}
    found: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(args.rounds + 1):
        for name, step in reversed(turns.items()) if number % 2 else turns.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(args.steps):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:  # The first round is discarded as a warm-up.
                found[name].append(batch * args.steps / (time.perf_counter() - began))
    folder = Path(os.environ["TORCHYARD_RUN_DIR"])
    (folder / f"figures-{os.environ['TORCHYARD_REPLICA']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
