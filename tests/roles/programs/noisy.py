"""Trains on samples whose gradients have a known mean and variance, and prints the estimated gradient noise scale."""

import json

import torch

import torchyard_roles as ty

WIDTH, MEAN, SPREAD, STEPS = 64, 0.5, 2.0, 1200


def main():
    cluster = ty.join()
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1, bias=False)
    # The gradient of a sample is the sample itself. The learning rate is 0, because the values need no training.
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.0))
    data = torch.utils.data.TensorDataset(MEAN + SPREAD * torch.randn(STEPS * 8, WIDTH))
    for [batch] in cluster.loader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    print(json.dumps(cluster._strategy.statistics().get("noise_scale")), flush=True)


if __name__ == "__main__":
    main()
