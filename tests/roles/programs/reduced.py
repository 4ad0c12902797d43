"""Trains a model with unusual parameters, and prints a digest of its parameters after every step as JSON.

The model has two dtypes, a buffer, and parameters that are shared, frozen, never used, or used only by rank 1 in odd
steps. Training uses accumulation with no_sync, clipping and a schedule. With `nan=STEP`, rank 1's gradients of that
step are NaN. With `amp=1`, training uses autocast in bfloat16. With `after=FILE`, the second half of the steps begins
once that file exists.
"""

import contextlib
import hashlib
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import torchyard_roles as ty


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 600)
        self.second = nn.Linear(600, 60).double()
        self.tied = nn.Linear(600, 60).double()
        self.tied.weight = self.second.weight
        self.third = nn.Linear(60, 3).double()
        self.sometimes = nn.Linear(60, 3).double()
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor, more: bool) -> torch.Tensor:
        self.seen += 1
        hidden = torch.tanh(self.first(inputs)).double()
        hidden = torch.tanh(self.second(hidden) + self.tied(hidden))
        return self.third(hidden) + self.sometimes(hidden) if more else self.third(hidden)


def digest(model: nn.Module) -> str:
    hashed = hashlib.sha256()
    for value in model.state_dict().values():
        hashed.update(bytes(value.cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return hashed.hexdigest()[:16]


if __name__ == "__main__":
    arguments = dict(each.split("=") for each in sys.argv[1:])
    steps, nan_step = int(arguments.get("steps", 6)), int(arguments.get("nan", -1))
    cluster = ty.join()
    torch.manual_seed(cluster.rank)  # All ranks receive the chief's parameters.
    plain = Net()
    model, optimizer = cluster.distribute(plain, torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step in range(steps):
        while "after" in arguments and step == steps // 2 and not Path(arguments["after"]).exists():
            time.sleep(0.01)
        optimizer.zero_grad()
        for part in range(2):
            inputs = torch.randn(8, 12, generator=torch.Generator().manual_seed(100 * step + 10 * part + cluster.rank))
            inputs = inputs.to(cluster.device)
            with model.no_sync() if part == 0 else contextlib.nullcontext():
                with torch.autocast(cluster.device.type, torch.bfloat16, enabled="amp" in arguments):
                    outputs = model(inputs, step % 2 == 1 and cluster.rank == 1)
                loss = (outputs - torch.sin(inputs[:, :3])).square().mean()
                if step == nan_step and cluster.rank == 1:
                    loss = loss * float("nan")
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        print(json.dumps({"step": step, "digest": digest(model), "loss": loss.item()}), flush=True)
        time.sleep(float(arguments.get("pause", 0)))
    print(json.dumps({"statistics": cluster._strategy.statistics()}), flush=True)
