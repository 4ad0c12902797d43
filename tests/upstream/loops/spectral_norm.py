"""A GAN whose critic uses spectral norm: each forward pass computes new buffers, which the backward pass uses."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
    spectral_norm = nn.utils.spectral_norm
    critic = nn.Sequential(spectral_norm(nn.Linear(2, 12)), nn.ReLU(), spectral_norm(nn.Linear(12, 1)))
    for_generator = torch.optim.Adam(generator.parameters(), lr=experiment.rate(0.02), betas=(0.0, 0.9))
    for_critic = torch.optim.Adam(critic.parameters(), lr=experiment.rate(0.02), betas=(0.0, 0.9))
    (generator, critic), (for_generator, for_critic) = cluster.distribute(
        [generator, critic], [for_generator, for_critic]
    )
    steps = experiment.passes(20)
    noises = experiment.draws(cluster.rank, steps, 8, 3)
    reals = experiment.draws(50 + cluster.rank, steps, 8, 2)
    losses = []
    for noise, real in zip(noises, reals, strict=True):
        real = 0.3 * real + 2.0
        fake = generator(noise)
        for_critic.zero_grad()
        loss = (1 - critic(real)).relu().mean() + (1 + critic(fake.detach())).relu().mean()
        loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        (-critic(fake).mean()).backward()
        for_generator.step()
        losses.append((fake.mean() - 2.0).abs().item())
    experiment.finish(cluster, losses, generator=generator, critic=critic)


if __name__ == "__main__":
    main()
