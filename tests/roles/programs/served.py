"""Trains the given number of steps in any role, and prints the result as JSON.

    served.py STEPS [PAUSE_S [STEP FILE]]

After STEP, the script waits until FILE exists. A server or reducer needs no arguments, because it does not return from
join().
"""

import json
import sys
import time
from pathlib import Path

import torch

import torchyard_roles as ty

if __name__ == "__main__":
    cluster = ty.join()
    torch.manual_seed(cluster.rank)
    model = torch.nn.Linear(64, 32)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    inputs = torch.randn(8, 64)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = (model(inputs) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}", flush=True)
        time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
        while len(sys.argv) > 4 and step + 1 == int(sys.argv[3]) and not Path(sys.argv[4]).exists():
            time.sleep(0.01)
    cluster.leave()
    print(json.dumps({"loss": loss.item(), "norm": model.weight.norm().item()}), flush=True)
