"""Trains the MNIST network on parameter servers. The steps per second are written to figures-<replica>.json."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from digits_net import batch, network
from torch import nn

import torchyard_roles as ty


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    cluster = ty.join()
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    model, optimizer = cluster.distribute(model, optimizer)
    images, labels = batch()
    began = 0.0
    for number in range(args.steps + 3):
        if number == 3:
            began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    rate = args.steps / (time.perf_counter() - began)
    folder = Path(os.environ["TORCHYARD_RUN_DIR"])
    (folder / f"figures-{os.environ['TORCHYARD_REPLICA']}.json").write_text(json.dumps([rate]))


if __name__ == "__main__":
    main()
