"""Trains the MNIST network with torch.distributed.rpc, as in PyTorch's tutorial: trainers call the model on rank 0.

The server runs the forward and backward passes of all trainers. dist_autograd computes the gradients, and
DistributedOptimizer takes the steps.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from digits_net import batch, network
from torch import nn
from torch.distributed.optim import DistributedOptimizer


class Server(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)

    def parameter_references(self) -> list:
        return [rpc.RRef(parameter) for parameter in self.model.parameters()]


def train(server: rpc.RRef, steps: int) -> float:
    optimizer = DistributedOptimizer(torch.optim.SGD, server.rpc_sync().parameter_references(), lr=0.03)
    images, labels = batch()
    began = 0.0
    for number in range(steps + 3):
        if number == 3:
            began = time.perf_counter()
        with dist_autograd.context() as context:
            loss = nn.functional.cross_entropy(server.rpc_sync().forward(images), labels)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
    return steps / (time.perf_counter() - began)


_server: Server | None = None


def the_server() -> Server:
    """Returns the server shared by all trainers. The first request creates it."""
    global _server
    if _server is None:
        _server = Server()
    return _server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # TensorPipe also determines its address from the host's name, which may be unresolvable.
    os.environ.setdefault("TP_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", ""))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", rpc_timeout=120
    )
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank:
        rate = train(rpc.remote("rank-0", the_server), args.steps)
        folder = Path(os.environ["TORCHYARD_RUN_DIR"])
        (folder / f"figures-{os.environ['TORCHYARD_REPLICA']}.json").write_text(json.dumps([rate]))
    rpc.shutdown()


if __name__ == "__main__":
    main()
