"""Runs a worker or a reducer on a lab host. The argument is a JSON plan.

A worker reduces gradients in N steps when it reads the line `steps N` from stdin.
"""

import json
import sys
import threading

import torch

from torchyard_roles.errors import PeerLost
from torchyard_roles.exchange.tensor_connection import Peer, listen
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient

PORT = 29600
KEY = bytes(range(32))


def print_line(line: str) -> None:
    print(line, flush=True)


def report_loss(client: ReduceClient) -> None:
    """Prints the name of the lost peer as soon as the exchange fails, even if no step is in progress."""
    client.failed.wait()
    error = client.failure
    assert isinstance(error, PeerLost)
    print_line(f"lost: {error.name}")


def work(plan: dict) -> None:
    peers = [Peer(f"reducer-{number}", address, PORT) for number, address in enumerate(plan["reducers"])]
    world = len(plan["workers"])
    client = ReduceClient(peers, [1] * len(peers), KEY, plan["number"], world, reconnect_s=0)
    reporter = threading.Thread(target=report_loss, args=(client,), daemon=True)
    reporter.start()
    gradients = torch.full((plan["bytes"] // 4,), float(plan["number"] + 1))
    step = 0
    print_line("ready")
    for line in sys.stdin:
        for _ in range(int(line.split()[1])):
            step += 1
            flat = gradients.clone()
            try:
                client.reduce(flat, step, 0).result()
            except PeerLost:
                reporter.join()
                return
            assert flat.min().item() == flat.max().item() == world * (world + 1) / 2
        print_line("summed")


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if plan["role"] == "worker":
        work(plan)
    else:
        number = plan["number"]
        Reducer(listen(plan["reducers"][number], PORT), KEY, f"reducer-{number}").start()
        sys.stdin.read()  # A reducer runs until the test closes its stdin.
