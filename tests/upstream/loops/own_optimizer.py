"""Uses an optimizer class that the script defines, as research repositories often do; it steps by the signs of averaged
gradients.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                parameter.add_(torch.sign(average.lerp(parameter.grad, 1 - first)), alpha=-group["lr"])
                average.lerp_(parameter.grad, 1 - second)


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = Lion(model.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
