"""Trains a Wasserstein GAN with gradient penalty: the gradient from torch.autograd.grad(create_graph=True) is itself
differentiated.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    generator = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
    critic = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=experiment.rate(0.02), betas=(0.0, 0.9))
    for_critic = torch.optim.Adam(critic.parameters(), lr=experiment.rate(0.02), betas=(0.0, 0.9))
    (generator, critic), (for_generator, for_critic) = cluster.distribute(
        [generator, critic], [for_generator, for_critic]
    )
    torch.manual_seed(10 + cluster.rank)
    losses = []
    for step in range(experiment.passes(20)):
        real = 0.3 * torch.randn(8, 2) + 2.0
        fake = generator(torch.randn(8, 3)).detach()
        for_critic.zero_grad()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
        loss.backward()
        for_critic.step()
        if step % 2:
            for_generator.zero_grad()
            fake = generator(torch.randn(8, 3))
            (-critic(fake).mean()).backward()
            for_generator.step()
        losses.append((fake.mean() - 2.0).abs().item())
    experiment.finish(cluster, losses, generator=generator, critic=critic)


if __name__ == "__main__":
    main()
