"""Trains worker groups that shard their model and average their parameters every few steps.

    sharded_rounds.py FOLDER STEPS SECONDS_A_STEP [frozen]

With HOLD=STEP, a rank that has finished STEP steps continues only when it is asked to stop. FOLDER/<rank> holds the
number of finished steps. After leave(), the script writes FOLDER/result.<rank>: the indices of the samples and the loss
of each step, and this rank's part of each parameter.
"""

import json
import sys
import time
from pathlib import Path

import torch
from tests.roles.programs import averages
from tests.roles.programs.rounds import hold, replace

import torchyard_roles as ty


class Model(torch.nn.Module):
    """A model with repeated blocks whose sizes are not multiples of two."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(5, 5)) for _ in range(3))
        self.last = torch.nn.Linear(5, 1)
        if "frozen" in sys.argv:
            self.first.bias.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = self.first(inputs)
        for block in self.blocks:
            inputs = inputs + block(inputs).tanh()
        return self.last(inputs)


def main() -> None:
    folder, steps, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    cluster = ty.join()
    torch.manual_seed(10 + cluster.rank)
    model = Model().double()
    model, optimizer = cluster.distribute(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = cluster.loader(averages.data(), batch_size=averages.BATCH, shuffle=True, seed=3)
    fed, losses = [], []
    while cluster._progress.steps < steps:
        for inputs, targets, numbers in loader:
            fed.append(numbers.tolist())
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            cluster.clip_gradients(1.0)
            optimizer.step()
            losses.append(loss.item())
            time.sleep(pause_s)
            replace(folder / str(cluster.rank), str(cluster._progress.steps))
            hold(cluster)
            if cluster._progress.steps >= steps:
                break
    cluster.leave()
    parts = {
        name: (each.to_local() if hasattr(each, "to_local") else each).tolist()
        for name, each in model.named_parameters()
    }
    replace(folder / f"result.{cluster.rank}", json.dumps({"fed": fed, "losses": losses, "parts": parts}))


if __name__ == "__main__":
    main()
