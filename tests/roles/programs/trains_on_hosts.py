"""Forks replicas one after the other on a lab host, because it would take seconds if each imported torch.

Each line of stdin is a JSON object for a replica: {"environment": {...}}. A trainer makes WARM_UP steps, prints
`ready`, makes as many steps as the next line says, prints `done`, and leaves after one more line.
"""

import json
import os
import sys
import time
from typing import Any

import torch

import torchyard_roles as ty
import torchyard_roles.strategies
import torchyard_roles.strategies.parameter_server.server_process
import torchyard_roles.strategies.reduction_server.reducer
from torchyard_roles.strategies.hogwild.strategy import Hogwild
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy

WARM_UP = 9
"""The number of steps before the measurement. It is a multiple of 4, plus 1, so that an exchange that is due every 4
steps has begun.
"""
ELEMENTS = 1_000_000
STEP_S = 0.08


def line() -> str:
    """Returns the next line of stdin. Does not buffer, because the parent and its children read in turn."""
    found = b""
    while not found.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(0)
        found += piece
    return found.decode()


def wait_for_exchanges(strategy: Any) -> None:
    """Waits until the exchange has ended, if the strategy overlaps it with the next step."""
    if isinstance(strategy, ParameterServerStrategy) and strategy.pairs[0]._exchange is not None:
        strategy.pairs[0]._exchange.wait()
    if isinstance(strategy, Hogwild):
        assert all(copy.wait(60) for copy in strategy._group.copies)


def train() -> None:
    cluster = ty.join()
    model = torch.nn.Linear(ELEMENTS // 1000, 1000, bias=False)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    batch = torch.ones(1, ELEMENTS // 1000)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            time.sleep(STEP_S)

    steps(WARM_UP)
    wait_for_exchanges(cluster._strategy)
    print("ready", flush=True)
    steps(int(line()))
    wait_for_exchanges(cluster._strategy)
    print("done", flush=True)
    line()
    cluster.leave()
    print("left", flush=True)


if __name__ == "__main__":
    while True:
        environment = json.loads(line())["environment"]
        child = os.fork()
        if not child:
            os.environ.update(environment)
            train()
            break
        if environment["TORCHYARD_ROLE"] == "worker":
            os.waitpid(child, 0)
