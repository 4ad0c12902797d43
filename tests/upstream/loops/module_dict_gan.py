"""A generator and a discriminator in one ModuleDict with one optimizer; as in CycleGAN, requires_grad determines which
of the two gets gradients.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def switch(module: nn.Module, on: bool) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(on)


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2)),
            "discriminator": nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1)),
        }
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.rate(0.02), betas=(0.5, 0.9))
    model, optimizer = cluster.distribute(model, optimizer)
    generator, discriminator = model["generator"], model["discriminator"]
    lsgan = nn.MSELoss()
    steps = experiment.passes(20)
    noises = experiment.draws(cluster.rank, steps, 8, 3)
    reals = experiment.draws(50 + cluster.rank, steps, 8, 2)
    losses = []
    for noise, real in zip(noises, reals, strict=True):
        real = 0.3 * real + 2.0
        fake = generator(noise)
        optimizer.zero_grad()
        switch(discriminator, True)
        on_real, on_fake = discriminator(real), discriminator(fake.detach())
        (lsgan(on_real, torch.ones(8, 1)) + lsgan(on_fake, torch.zeros(8, 1))).backward()
        switch(discriminator, False)
        lsgan(discriminator(fake), torch.ones(8, 1)).backward()
        switch(discriminator, True)
        optimizer.step()
        losses.append((fake.mean() - 2.0).abs().item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
