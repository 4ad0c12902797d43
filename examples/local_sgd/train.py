"""Train the digits of ../digits with a custom strategy; only the call of join() differs."""

import torch
import torchyard_roles as ty
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from local_sgd import LocalSgd


def main() -> None:
    cluster = ty.join(strategy=LocalSgd)
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(TensorDataset(images[:1500], digits[:1500]), batch_size=30, shuffle=True)
    for _ in range(10):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            cluster.report(loss=loss)
    cluster.leave()  # After leave(), all workers have the last mean.
    with torch.no_grad():
        right = (model(images[1500:].to(cluster.device)).argmax(dim=1).cpu() == digits[1500:]).float().mean()
    print(f"test accuracy {right.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
