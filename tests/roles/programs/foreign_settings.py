"""Trains in a script that changes many process-wide settings, and prints the loss of each step as JSON.

    foreign_settings.py DTYPE [spawn]

DTYPE is torch's default dtype. The other settings are a default device, deterministic algorithms, anomaly mode,
inference mode in evaluations, a different number of threads, a different working directory, a replaced sys.stdout,
signal handlers, loaders with forked and spawned workers, several parameter groups, tied and frozen parameters, outputs
in a dict, and a scheduler.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile

import torch
from torch import nn

import torchyard_roles as ty


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        hidden = self.norm(torch.tanh(self.tied(hidden)) + 0.1 * self.frozen(hidden))
        return {"out": self.last(hidden), "hidden": hidden}


def main() -> None:
    dtype = getattr(torch, sys.argv[1])
    torch.set_default_dtype(dtype)
    torch.set_default_device("cpu")
    torch.use_deterministic_algorithms(True)
    stdout, sys.stdout = sys.stdout, io.StringIO()
    os.chdir(tempfile.gettempdir())
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    cluster = ty.join()
    torch.manual_seed(4)
    model = Net()
    matrices = [each for each in model.parameters() if each.dim() > 1 and each.requires_grad]
    others = [each for each in model.parameters() if each.dim() < 2 and each.requires_grad]
    groups = [{"params": matrices, "lr": 0.02}, {"params": others, "lr": 0.01}]
    model, optimizer = cluster.distribute(model, torch.optim.SGD(groups))
    torch.set_num_threads(2)
    inputs = torch.randn(160, 4, generator=torch.Generator().manual_seed(1))
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    losses = []
    for workers, context in ((0, None), (1, "fork"), (1, "spawn"))[: 3 if "spawn" in sys.argv else 2]:
        loader = cluster.loader(
            dataset, batch_size=8, shuffle=False, num_workers=workers, multiprocessing_context=context
        )
        for features, targets in loader:
            with torch.autograd.set_detect_anomaly(len(losses) % 4 == 0):
                loss = (model(features)["out"] - targets).square().mean()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.inference_mode():
            model(inputs)["out"].sum().item()
        model.train()
    cluster.leave()
    assert torch.get_default_dtype() is dtype
    assert sys.stdout.getvalue() == "" or "torchyard:" in sys.stdout.getvalue()
    sys.stdout = stdout
    print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
