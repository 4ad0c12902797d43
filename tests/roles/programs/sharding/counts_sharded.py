"""Counts the updates of worker groups that may shard their model: each update subtracts 1 from each parameter.

    counts_sharded.py FOLDER UPDATES SECONDS_AN_UPDATE [meta]

FOLDER/<rank> holds the number of updates that have begun. After leave(), the script writes FOLDER/result.<rank>: the
smallest and largest value of this rank's parts of the parameters. A resumed run makes the remaining updates. With
`meta`, only the chief's model has values.
"""

import json
import sys
import time
from pathlib import Path

import torch
from tests.roles.programs.rounds import replace

import torchyard_roles as ty


class Block(torch.nn.Module):
    """A parameter whose size is not a multiple of two. Its gradient is a buffer, which is 1 on the chief."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(1001, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.value.sum() * self.scale


def main() -> None:
    folder, updates, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    cluster = ty.join()
    with torch.device("meta" if "meta" in sys.argv and not cluster.is_chief else "cpu"):
        model = torch.nn.Sequential(Block(), Block(), Block())
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0))
    while cluster._progress.steps < updates:
        optimizer.zero_grad()
        model(torch.zeros(1, dtype=torch.float64, device=cluster.device)).sum().backward()
        replace(folder / str(cluster.rank), str(cluster._progress.steps + 1))
        optimizer.step()
        time.sleep(pause_s)
    cluster.leave()
    parts = [each.to_local() if hasattr(each, "to_local") else each for each in model.parameters()]
    values = torch.cat([part.detach() for part in parts])
    replace(folder / f"result.{cluster.rank}", json.dumps({"least": values.min().item(), "most": values.max().item()}))


if __name__ == "__main__":
    main()
