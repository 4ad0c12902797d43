"""Train a classifier of handwritten digits on 1,797 real images of 8×8 pixels that come with scikit-learn."""

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

TEST_SAMPLES = 450


def load() -> tuple[data.TensorDataset, data.TensorDataset]:
    """Returns the training and the test data; the split does not depend on the seed."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    digits = torch.tensor(labels)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return data.TensorDataset(images[train], digits[train]), data.TensorDataset(images[test], digits[test])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, dataset: data.TensorDataset) -> float:
    device = next(model.parameters()).device
    images, digits = (tensor.to(device) for tensor in dataset.tensors)
    return (model(images).argmax(dim=1) == digits).float().mean().item()


def save(model: nn.Module, path: Path) -> None:
    """Saves under a temporary name first, so that a reader never gets an incomplete file."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(model.state_dict(), unfinished)
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="save the trained model to this file")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = data.DataLoader(train, batch_size=args.batch_size, shuffle=True)

    for epoch in range(args.epochs):
        total = 0.0
        for images, digits in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), digits)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1} loss {total / len(loader):.4f}", flush=True)

    if args.out:
        save(model, args.out)
    print(f"test accuracy {accuracy(model, test):.4f}", flush=True)


if __name__ == "__main__":
    main()
