"""Trains the same model twice, by all workers together and by rank 0 alone on the whole batches, and compares.

Prints JSON on rank 0: for each precision the largest difference between any two parameters.
"""

import json
import sys

import torch
from torch import nn

import torchyard_roles as ty
from torchyard_roles.cluster import Cluster

STEPS = 300
BATCH = 8


def model_of(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3)).to(dtype)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, batches: torch.utils.data.DataLoader) -> None:
    steps = 0
    while steps < STEPS:
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            steps += 1


def compare(cluster: Cluster, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(2)
    count = BATCH * cluster.world_size * 10  # ten steps an epoch, all batches equal
    inputs = torch.randn(count, 12, generator=generator, dtype=dtype)
    dataset = torch.utils.data.TensorDataset(inputs, torch.sin(inputs[:, :3]))

    alone = model_of(dtype)
    order = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=5)
    steps = torch.utils.data.DataLoader(dataset, BATCH * cluster.world_size, sampler=order)

    class EpochByEpoch:
        epoch = 0

        def __iter__(self):
            order.set_epoch(self.epoch)
            self.epoch += 1
            return iter(steps)

    shared = model_of(dtype)
    distributed, optimizer = cluster.distribute(shared, optimizer_of(shared))
    descend(distributed, optimizer, cluster.loader(dataset, batch_size=BATCH, seed=5))
    if not cluster.is_chief:
        return 0.0
    descend(alone, optimizer_of(alone), EpochByEpoch())
    pairs = zip(shared.parameters(), alone.parameters(), strict=True)
    return max((mine - other).abs().max().item() for mine, other in pairs)


if __name__ == "__main__":
    cluster = ty.join()
    dtype = getattr(torch, sys.argv[1])
    difference = compare(cluster, dtype)
    if cluster.is_chief:
        print(json.dumps({"world_size": cluster.world_size, "difference": difference}))
