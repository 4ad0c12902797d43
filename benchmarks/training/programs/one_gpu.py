"""Trains the same models on one GPU, in a world of size 1 with NCCL, alternately with plain DDP and with `AllReduce`.

Prints JSON with the milliseconds per step in each turn, by model and arm.
"""

import json
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchyard_roles.environment import Environment
from torchyard_roles.strategies.all_reduce import AllReduce

ROUNDS = 12
STEPS = 20
DEVICE = torch.device("cuda", 0)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """Returns a model with a few large layers in float32, and its inputs."""
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), torch.randn(
        512, 3, 32, 32
    )


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Returns a model with about 150 parameter tensors of 615 MB in total, and inputs for bfloat16 autocast."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 12), nn.Flatten(), nn.LazyLinear(10)), torch.randn(64, 256, 1024)


def stepping(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> Callable[[], None]:
    labels = torch.zeros(len(inputs), dtype=torch.int64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=inputs.dim() == 3):
            outputs = model(inputs)
        nn.functional.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    found = {}
    for make in (convolutions, transformer):

        def pair(make: Callable[[], tuple[nn.Module, torch.Tensor]] = make) -> tuple:
            torch.manual_seed(0)
            model, inputs = make()
            inputs = inputs.to(DEVICE)
            model = model.to(DEVICE)
            model(inputs[:1])
            return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), inputs

        model, optimizer, inputs = pair()
        plain = stepping(DistributedDataParallel(model, device_ids=[0]), optimizer, inputs)
        model, optimizer, inputs = pair()
        ours = stepping(*AllReduce(Environment(rank=0)).distribute(model, optimizer, DEVICE), inputs)
        turns = {"plain DDP": plain, "distribute": ours}
        for number in range(ROUNDS + 2):
            for name, step in reversed(turns.items()) if number % 2 else turns.items():
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(STEPS):
                    step()
                torch.cuda.synchronize()
                if number >= 2:  # The first rounds are discarded as a warm-up.
                    took = 1000 * (time.perf_counter() - began) / STEPS
                    found.setdefault(f"{make.__name__}: {name}", []).append(took)
    dist.destroy_process_group()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
