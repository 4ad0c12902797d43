"""Trains with ranks that diverge from each other in the way that the argument names."""

import sys

import torch
from torch import nn

import torchyard_roles as ty

STEPS = 7


def main(how: str) -> None:
    cluster = ty.join()
    last = cluster.rank == cluster.world_size - 1
    torch.manual_seed(3)
    wide = 1200 if how == "a pass broken off late" else 8  # A width of 1200 fills a bucket before the pass ends.
    model = nn.Sequential(nn.Linear(4, wide), nn.Tanh(), nn.Linear(wide, wide // 4), nn.Linear(wide // 4, 1))
    if how == "updates by hand":
        by_hand(cluster.distribute(model), cluster, STEPS, 1 + cluster.rank)
        return
    if how == "an end of its own":
        by_hand(cluster.distribute(model), cluster, STEPS if last else 3, 1)
        return
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    steps = STEPS - 2 * (how == "fewer steps" and last)
    for step in range(steps):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + cluster.rank))
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        if how.startswith("a pass broken off") and step == 2:
            handle = model[0].weight.register_hook(fail)
            try:
                loss.backward()
            except ArithmeticError:
                handle.remove()
                continue
        loss.backward()
        if how == "one more pass" and step == 3 and last:
            model(inputs).square().mean().backward()
        if how == "local gradients":
            model[2].bias.grad.add_(cluster.rank)
        if how == "a group of one rank's own" and step == 2 and last:
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
            optimizer.param_groups[-1]["params"][0].sum().backward()
        optimizer.step()
        if how == "local parameters" or (how == "local at the end" and step == STEPS - 1):
            model[2].weight.data.add_(0.1 * cluster.rank)
        if how == "local at a checkpoint" and step == 4:
            model[2].weight.data.add_(0.1 * cluster.rank)
            if cluster.is_chief:  # Only the chief saves.
                cluster._strategy.save(None, step + 1)
        if how == "a plateau of the local loss":
            plateau.step(loss.item() if cluster.rank else -float(step))
    cluster.leave()
    print("ended", flush=True)


def by_hand(model: nn.Module, cluster: ty.Cluster, steps: int, factor: float) -> None:
    for step in range(steps):
        model.zero_grad()
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + cluster.rank))
        model(inputs).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1 * factor)
    print("ended", flush=True)


def fail(gradient: torch.Tensor) -> None:
    raise ArithmeticError


if __name__ == "__main__":
    main(sys.argv[1])
