"""Trains with DDP as a typical script for torchrun does, without Torchyard.

If the process has a rank, it trains a few steps and prints the variables of its rank. Otherwise, it only evaluates the
model. The last line of the output is JSON.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(rank))
    return inputs, inputs.sum(dim=1, keepdim=True)


def train() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # DDP starts all ranks from the parameters of rank 0.
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = batch(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()

    ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(ranks, torch.tensor([rank]))
    weights = [torch.zeros(1, 8) for _ in range(world_size)]
    dist.all_gather(weights, model.module.weight.detach())
    seen = {
        "rank": rank,
        "world_size": world_size,
        "RANK": os.environ["RANK"],
        "WORLD_SIZE": os.environ["WORLD_SIZE"],
        "ranks": [int(each) for each in ranks],
        "same_model": all(torch.equal(weights[0], each) for each in weights),
        "loss": loss.item(),
    }
    dist.destroy_process_group()
    print(json.dumps(seen), flush=True)
    # In torch 2.13, gloo's threads outlive the process group. If such a thread frees tensors of the last gather during
    # the interpreter's shutdown, the process aborts, even under torchrun.
    time.sleep(0.5)


def score() -> None:
    model = nn.Linear(8, 1)
    inputs, targets = batch(rank=0)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(inputs), targets)
    print(json.dumps({"scored": loss.item(), "WORLD_SIZE": os.environ.get("WORLD_SIZE")}), flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        score()
