"""Saves a sharded model several times while it trains, and measures how long each save stalls training.

    torchrun … sharded_saves.py

Run it with `{"shard": "all"}` in TORCHYARD_OPTIONS and a folder in TORCHYARD_CHECKPOINTS. For each save, the first rank
prints JSON with the milliseconds until the checkpoint is complete (`save`), and the milliseconds for which the save
blocked the training thread (`stall`).
"""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import torchyard_roles as ty

SAVES = 6
SIZE = 1536


class Stopwatch:
    """Measures the time that calls take on the training thread."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._depth = 0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*arguments: Any, **named: Any) -> Any:
            began, self._depth = time.perf_counter(), self._depth + 1
            try:
                return call(*arguments, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.total_s += time.perf_counter() - began

        return timed_call


def main() -> None:
    cluster = ty.join()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(12)))
    model, optimizer = cluster.distribute(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    inputs = torch.randn(256, SIZE, device=cluster.device)
    cluster.checkpoint()
    saver, saving = cluster._saver, cluster._strategy.sharded_saving
    assert saver is not None
    assert saving is not None
    ended: list[float] = []
    write: Any = saver._write_sharded

    def written(*arguments: Any) -> None:
        write(*arguments)
        ended.append(time.perf_counter())

    blocked = Stopwatch()
    began: list[float] = []
    save: Any = blocked.timed(saver.save)

    def begun(*arguments: Any, **named: Any) -> Any:
        began.append(time.perf_counter())
        return save(*arguments, **named)

    changed: Any = saver
    changed._write_sharded, changed.save = written, begun
    changing: Any = saving
    changing.settle, changing.begin = blocked.timed(saving.settle), blocked.timed(saving.begin)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    def have_all_ended(number: int) -> bool:
        has_ended = torch.tensor(len(ended) > number, dtype=torch.int32, device=cluster.device)
        dist.all_reduce(has_ended, op=dist.ReduceOp.MIN)
        return bool(has_ended.item())

    found: dict[str, list[float]] = {"save": [], "stall": []}
    for number in range(SAVES + 1):
        step()
        before = blocked.total_s
        cluster.checkpoint(now=True)
        while not have_all_ended(number):
            step()
        if number > 0:  # The first save is discarded, because it allocates the memory for the copies.
            found["save"].append(1000 * (ended[number] - began[number]))
            found["stall"].append(1000 * (blocked.total_s - before))
    if cluster.is_chief:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
