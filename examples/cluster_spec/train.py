"""Train a classifier of handwritten digits with DDP, finding the peers only by CLUSTER_SPEC, as on Vertex AI."""

import json
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEST_SAMPLES = 450
EPOCHS = 10
BATCH = 32


def place(text: str) -> tuple[str, int, int]:
    """Returns the address of the first trainer, this trainer's rank and the number of trainers from a CLUSTER_SPEC.

    The chief is pool 0, the other trainers are pool 1; their addresses are in the order of ranks.
    """
    spec = json.loads(text)
    pools, task = spec["cluster"], spec["task"]
    trainers = [*pools["workerpool0"], *pools.get("workerpool1", [])]
    before = {"workerpool0": 0, "workerpool1": len(pools["workerpool0"])}
    if task["type"] not in before:
        raise SystemExit(f"this script trains; it does not know what a replica of {task['type']} should do")
    return trainers[0], before[task["type"]] + task["index"], len(trainers)


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns pixels and digits of the training and the test data, with the same split on every host."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    return images[TEST_SAMPLES:], labels[TEST_SAMPLES:], images[:TEST_SAMPLES], labels[:TEST_SAMPLES]


def train(rank: int, size: int) -> None:
    torch.manual_seed(0)
    images, labels, test_images, test_labels = load()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        # All ranks shuffle in the same order, so that each takes its own part of every common batch.
        batches = torch.randperm(len(labels)).split(BATCH * size)[:-1]
        total = 0.0
        for batch in batches:
            own = batch[rank::size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[own]), labels[own])
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1} loss {total / len(batches):.4f}", flush=True)

    with torch.no_grad():
        found = model.module(test_images).argmax(dim=1)
    print(f"test accuracy {(found == test_labels).float().mean().item():.4f}", flush=True)


def main() -> None:
    first, rank, size = place(os.environ["CLUSTER_SPEC"])
    dist.init_process_group("gloo", init_method=f"tcp://{first}", rank=rank, world_size=size)
    print(f"rank {rank} of {size}, which meet at {first}", flush=True)
    # The model is freed before the process group. A DDP model that outlives its group ends gloo's threads itself, and
    # holds the GIL while it waits for them. With torch 2.13, this wait never ends if a thread still frees the last
    # gradients.
    train(rank, size)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
