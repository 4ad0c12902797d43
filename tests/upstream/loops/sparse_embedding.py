"""An embedding with sparse gradients and SparseAdam, as in recommendation models and word2vec."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    model = nn.Embedding(30, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=experiment.rate(0.05))
    model, optimizer = cluster.distribute(model, optimizer)
    tokens = experiment.text(161, 30, seed=20 + cluster.rank)
    losses = []
    for start in list(range(0, 160, 8)) * experiment.passes(1):
        words, contexts = tokens[start : start + 8], tokens[start + 1 : start + 9]
        optimizer.zero_grad()
        alike = (model(words) * model(contexts)).sum(dim=1)
        loss = nn.functional.softplus(-alike).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
