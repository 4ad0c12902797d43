"""The script of the benchmarks that measure the time until the first optimizer step."""

from __future__ import annotations

_STEP = """
import os, pathlib, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(32, 64)).sum().backward()
optimizer.step()
# All hosts of the lab share this machine's clock.
"""
_END = """
dist.destroy_process_group()
time.sleep(0.3)  # torch 2.13 can abort where a process ends right after a collective (gloo's threads outlive the group)
"""


def script_of_one_step(after: str) -> str:
    """Returns a script that takes one optimizer step with DDP, and then executes the statements `after`.

    The statements can use `os`, `pathlib`, `time` and `dist`.
    """
    return _STEP + after.strip() + _END
