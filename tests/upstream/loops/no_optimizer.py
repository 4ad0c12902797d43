"""The script updates the parameters itself, as in the first version of word_language_model in pytorch/examples; there
is no optimizer."""

import experiment
from torch import nn

import torchyard_roles as ty

LR = experiment.rate(0.1)


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    model = cluster.distribute(model)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            model.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-LR)
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
