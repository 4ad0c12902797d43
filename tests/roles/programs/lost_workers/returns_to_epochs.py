"""Trains in epochs with a loader and a scheduler; rank 1 kills itself in the second epoch, and returns.

Each rank prints the samples of every step. Training ends with the second epoch after the return.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from itertools import count

import torch
from torch.utils.data import TensorDataset

import torchyard_roles

SAMPLES, BATCH = 48, 4


def main() -> None:
    torch.manual_seed(1)
    cluster = torchyard_roles.join()
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).double()
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    loader = cluster.loader(TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    cluster.checkpoint(scheduler=scheduler)
    first = os.environ.get("TORCHYARD_RETURN") is None
    is_back, left = False, 2
    for epoch in count():
        for number, (samples,) in enumerate(loader):
            if first and cluster.rank == 1 and (epoch, number) == (1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(samples.view(-1, 1).double()).square().mean().backward()
            optimizer.step()
            there = cluster.gather(not first)
            is_back = is_back or any(there)
            seen = {"epoch": epoch, "samples": samples.tolist(), "ranks": len(there), "lr": scheduler.get_last_lr()[0]}
            print(json.dumps(seen), flush=True)
            if not is_back:
                time.sleep(0.2)
        scheduler.step()
        left -= cluster.any(is_back)
        if not left:
            break
    values = [value.detach().reshape(-1).double() for value in model.state_dict().values()]
    print(json.dumps({"digest": hashlib.sha256(bytes(torch.cat(values).view(torch.uint8).tolist())).hexdigest()}))


main()
