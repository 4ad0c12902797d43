"""Trains with one rank that computes longer in the last two steps, and prints the parts of each step's time as JSON.

timed.py STEPS SLOW_RANK SECONDS
"""

import json
import sys
import time

import torch
from torch import nn

import torchyard_roles as ty

if __name__ == "__main__":
    steps, slow, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    cluster = ty.join()
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
    inputs = torch.randn(8, 256, device=cluster.device)
    stepped_at = time.monotonic()
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        time.sleep(0.02 + seconds * (cluster.rank == slow and step >= steps - 2))
        loss.backward()
        optimizer.step()
        before, stepped_at = stepped_at, time.monotonic()
        metrics = cluster._progress.take(cluster._strategy.statistics())
        found.append({**metrics, "took_s": stepped_at - before})
    print(json.dumps(found), flush=True)
