"""Trains with the strategy of examples/local_sgd. Prints, as JSON, the batches and the parameters before each step."""

import json

import torch

import torchyard_roles as ty

STEPS = 20
SAMPLES = 80
BATCH = 4


def model_of() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def data() -> torch.utils.data.TensorDataset:
    inputs = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return torch.utils.data.TensorDataset(inputs, torch.sin(inputs[:, :1]), torch.arange(SAMPLES))


def flat(model: torch.nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


if __name__ == "__main__":
    from local_sgd import LocalSgd  # type: ignore[import-not-found]  # Only the processes have the example's folder on their path.

    cluster = ty.join(strategy=LocalSgd)
    torch.manual_seed(10 + cluster.rank)
    model = model_of()
    model, optimizer = cluster.distribute(model, optimizer_of(model))
    loader = cluster.loader(data(), batch_size=BATCH, shuffle=True, seed=3)
    fed, before = [], []
    while len(fed) < STEPS:
        for inputs, targets, numbers in loader:
            fed.append(numbers.tolist())
            before.append(flat(model))
            step(model, optimizer, inputs, targets)
    cluster.leave()
    print(json.dumps({"fed": fed, "before": before, "after": flat(model)}))
