"""Makes a backward pass for each of two losses, each for only some of the parameters, with loss.backward(inputs=…)."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    body, head = nn.Sequential(nn.Linear(6, 12), nn.Tanh()), nn.Linear(12, 1)
    model = nn.Sequential(body, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=False)
            predicted = model(inputs)
            loss = nn.functional.mse_loss(predicted, targets)
            loss.backward(inputs=list(head.parameters()), retain_graph=True)
            nn.functional.smooth_l1_loss(predicted, targets).backward(inputs=list(body.parameters()))
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
