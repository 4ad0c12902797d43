"""Trains in float16 with a GradScaler as in torch's documentation, and then without other ranks on all their batches.

    scaled.py RANK...

The gradients of the given ranks overflow in step OVERFLOWS. Prints JSON: the final scale, a digest, and the largest
difference from the model that was trained alone, relative to the largest parameter of the latter.
"""

import json
import sys

import torch
from reduced import digest
from torch import nn

import torchyard_roles as ty

STEPS = 24
BATCH = 16
OVERFLOWS = 5
SCALE = 2.0**10
GROWS_EVERY = 8


def network(device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)).to(device)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


overflowing = set(map(int, sys.argv[1:]))


def inputs_of(step: int, rank: int, device: torch.device) -> torch.Tensor:
    return torch.randn(BATCH, 64, generator=torch.Generator().manual_seed(100 * step + rank)).to(device)


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: list[int], device: torch.device) -> float:
    """Trains on the batches of the given ranks; returns the scale at the end."""
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, growth_interval=GROWS_EVERY)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.cat([inputs_of(step, rank, device) for rank in ranks])
        with torch.autocast(device.type, torch.float16):
            outputs = model(inputs)
            assert outputs.dtype == torch.float16
            loss = nn.functional.mse_loss(outputs.float(), torch.sin(inputs))
        if step == OVERFLOWS and overflowing & set(ranks):
            loss = loss * 1e30
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


if __name__ == "__main__":
    cluster = ty.join()
    plain = network(cluster.device)
    model, optimizer = cluster.distribute(plain, optimizer_of(plain))
    found = {"device": str(cluster.device), "scale": descend(model, optimizer, [cluster.rank], cluster.device)}
    cluster.leave()
    alone = network(cluster.device)
    found["expected_scale"] = descend(alone, optimizer_of(alone), list(range(cluster.world_size)), cluster.device)
    largest = max(parameter.detach().abs().max().item() for parameter in alone.parameters())
    pairs = zip(plain.parameters(), alone.parameters(), strict=True)
    found["difference"] = max((mine - other).abs().max().item() for mine, other in pairs) / largest
    print(json.dumps({**found, "digest": digest(plain)}), flush=True)
