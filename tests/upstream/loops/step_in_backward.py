"""Each layer's optimizer steps in a hook inside the backward pass, as soon as the layer's gradients exist, which saves
the memory of gradients."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    layers = [model[0], model[2]]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=experiment.rate(0.1), momentum=0.5) for layer in layers]
    cluster.distribute(layers, optimizers)
    for layer, optimizer in zip(layers, optimizers, strict=True):
        waiting = set(layer.parameters())

        def step(parameter, left=waiting, layer=layer, optimizer=optimizer):
            left.discard(parameter)
            if not left:
                optimizer.step()
                optimizer.zero_grad()
                left.update(layer.parameters())

        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(step)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
