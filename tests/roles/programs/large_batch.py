"""Trains a model on all workers, then on rank 0 alone with the batches of all ranks, and compares the results.

    large_batch.py DTYPE [clip]

Rank 0 prints the largest difference between corresponding parameters as JSON. With `clip`, gradients are clipped and
the learning rate decreases; the number of clipped steps and the largest difference between corresponding norms are also
printed.
"""

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import torchyard_roles as ty
from torchyard_roles.cluster import Cluster

STEPS = 300
BATCH = 8
MAX_NORM = 0.3


def model_of(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3)).to(dtype)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def descend(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: torch.utils.data.DataLoader,
    clip: Callable[[float], torch.Tensor] | None,
) -> list[float]:
    """Trains the model; returns the norms before clipping."""
    norms: list[float] = []
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    steps = 0
    while steps < STEPS:
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            if clip is not None:
                norms.append(clip(MAX_NORM).item())
            optimizer.step()
            if clip is not None:
                schedule.step()
            steps += 1
    return norms


def compare(cluster: Cluster, dtype: torch.dtype, *, clips: bool) -> dict[str, float]:
    generator = torch.Generator().manual_seed(2)
    count = BATCH * cluster.world_size * 10  # An epoch has ten steps with equally large batches.
    inputs = torch.randn(count, 12, generator=generator, dtype=dtype)
    dataset = torch.utils.data.TensorDataset(inputs, torch.sin(inputs[:, :3]))

    alone = model_of(dtype).to(cluster.device)
    order = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=5)
    steps = torch.utils.data.DataLoader(dataset, BATCH * cluster.world_size, sampler=order)

    class EpochByEpoch:
        epoch = 0

        def __iter__(self):
            order.set_epoch(self.epoch)
            self.epoch += 1
            return ((inputs.to(cluster.device), targets.to(cluster.device)) for inputs, targets in steps)

    shared = model_of(dtype)
    distributed, optimizer = cluster.distribute(shared, optimizer_of(shared))
    loader = cluster.loader(dataset, batch_size=BATCH, shuffle=True, seed=5)
    norms = descend(distributed, optimizer, loader, cluster.clip_gradients if clips else None)
    if not cluster.is_chief:
        return {}
    clip = partial(nn.utils.clip_grad_norm_, list(alone.parameters()))
    expected = descend(alone, optimizer_of(alone), EpochByEpoch(), clip if clips else None)
    pairs = zip(shared.parameters(), alone.parameters(), strict=True)
    found = {"difference": max((mine - other).abs().max().item() for mine, other in pairs)}
    if clips:
        found["clipped"] = sum(norm > MAX_NORM for norm in norms)
        found["norms_differ"] = max(abs(mine - other) for mine, other in zip(norms, expected, strict=True))
    return found


if __name__ == "__main__":
    cluster = ty.join()
    dtype = getattr(torch, sys.argv[1])
    found = compare(cluster, dtype, clips="clip" in sys.argv)
    if cluster.is_chief:
        print(json.dumps({"world_size": cluster.world_size, **found}))
