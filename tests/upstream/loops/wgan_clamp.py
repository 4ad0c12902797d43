"""Trains a Wasserstein GAN: the critic makes several steps per generator step, and its weights are clamped after each
of its steps.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty

CRITIC_STEPS = 2
CLAMP = 0.2


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
    critic = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 1))
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=experiment.rate(0.02))
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=experiment.rate(0.02))
    (generator, critic), (for_generator, for_critic) = cluster.distribute(
        [generator, critic], [for_generator, for_critic]
    )
    noises = experiment.draws(cluster.rank, experiment.passes(60), 8, 3)
    reals = experiment.draws(50 + cluster.rank, experiment.passes(60), 8, 2)
    losses = []
    for _ in range(experiment.passes(15)):
        for _ in range(CRITIC_STEPS):
            real = 0.3 * next(reals) + 2.0
            fake = generator(next(noises)).detach()
            for_critic.zero_grad()
            loss = critic(fake).mean() - critic(real).mean()
            loss.backward()
            for_critic.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-CLAMP, CLAMP)
        for_generator.zero_grad()
        fake = generator(next(noises))
        loss = -critic(fake).mean()
        loss.backward()
        for_generator.step()
        losses.append((fake.mean() - 2.0).abs().item())
    experiment.finish(cluster, losses, generator=generator, critic=critic)


if __name__ == "__main__":
    main()
