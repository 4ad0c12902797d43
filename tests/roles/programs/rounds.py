"""Trains worker groups that average their parameters every few steps.

    rounds.py FOLDER STEPS SECONDS_A_STEP [BATCH_OF_RANK …]

With HOLD=STEP, a rank that has finished STEP steps continues only when it is asked to stop.

FOLDER/<rank> holds the number of finished steps. After leave(), the script writes FOLDER/result.<rank>, whose content
would be too long for a pipe: the indices of the samples in each step, the parameters before each step, and the
parameters at the end. The model has a buffer, which is also averaged.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from tests.roles.programs import averages
from tests.waiting import wait_until

import torchyard_roles as ty


class Model(torch.nn.Module):
    """The model of `averages`, with a buffer that holds a running mean of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = averages.model_of()
        self.frozen = torch.nn.Parameter(torch.randn(2), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.mean: torch.Tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(inputs.detach().mean(dim=0), alpha=0.5)
        return self.inner(inputs)


def values(model: Model) -> list[float]:
    return [*averages.flat(model.inner), *model.mean.tolist()]


def main() -> None:
    folder, steps, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    batches = list(map(int, sys.argv[4:]))
    cluster = ty.join()
    torch.manual_seed(10 + cluster.rank)
    model = Model()
    model, optimizer = cluster.distribute(model, averages.optimizer_of(model.inner))
    batch = batches[cluster.rank] if batches else averages.BATCH
    loader = cluster.loader(averages.data(), batch_size=batch, shuffle=True, seed=3)
    fed, before = [], []
    done = 0
    while done < steps:
        for inputs, targets, numbers in loader:
            fed.append(numbers.tolist())
            before.append(values(model))
            averages.step(model, optimizer, inputs, targets)
            done += 1
            time.sleep(pause_s)
            replace(folder / str(cluster.rank), str(cluster._progress.steps))
            hold(cluster)
            if cluster._progress.steps >= steps:
                done = steps
                break
    cluster.leave()
    result = {"fed": fed, "before": before, "after": values(model), "frozen": model.frozen.tolist()}
    replace(folder / f"result.{cluster.rank}", json.dumps(result))


def hold(cluster: ty.Cluster) -> None:
    """Waits for a request to stop, if HOLD is the number of steps that this rank has finished."""
    stop = cluster._graceful_stop
    if os.environ.get("HOLD") == str(cluster._progress.steps) and stop is not None:
        wait_until(lambda: stop.is_requested)


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    main()
