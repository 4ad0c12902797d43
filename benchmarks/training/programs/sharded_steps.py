"""Trains the same model on all ranks, alternately sharded by hand with FSDP2 and through `distribute()`.

Run this program with torchrun, and with `"shard": "all"` in TORCHYARD_OPTIONS. The first rank prints JSON with the
milliseconds per step in each turn, by arm.
"""

import json
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import torchyard_roles as ty

ROUNDS = 40
STEPS = 3


def model_of() -> nn.Sequential:
    """Returns a transformer of 4.7 million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True) for _ in range(6)), nn.Linear(256, 10)
    )


def stepping(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, clip: Callable[[], object]
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        clip()
        optimizer.step()

    return step


def main() -> None:
    cluster = ty.join()
    device = cluster.device
    inputs = torch.randn(4, 64, 256, device=device)

    by_hand = model_of().to(device)
    for layer in list(by_hand)[:-1]:
        fully_shard(layer)
    fully_shard(by_hand)
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-4)
    parameters = list(by_hand.parameters())
    hand = stepping(by_hand, optimizer, inputs, lambda: nn.utils.clip_grad_norm_(parameters, 1.0))

    model = model_of()
    model, optimizer = cluster.distribute(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    ours = stepping(model, optimizer, inputs, lambda: cluster.clip_gradients(1.0))

    found: dict[str, list[float]] = {}
    turns = {"sharded by hand": hand, "distribute": ours}
    for number in range(ROUNDS + 2):
        for name, step in reversed(turns.items()) if number % 2 else turns.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()
            if number >= 2:  # The first rounds are discarded as a warm-up.
                found.setdefault(name, []).append(1000 * (time.perf_counter() - began) / STEPS)
    if cluster.is_chief:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
