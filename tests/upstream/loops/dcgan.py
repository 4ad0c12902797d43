"""A deep convolutional GAN based on pytorch/examples: two models with batch norm, two optimizers, and three backward
passes for two steps."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(3, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.main(images).view(-1)


def weights_init(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.1)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    netG, netD = Generator().apply(weights_init), Discriminator().apply(weights_init)
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=experiment.rate(0.01), betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=experiment.rate(0.02), betas=(0.5, 0.999))
    (netD, netG), (optimizerD, optimizerG) = cluster.distribute([netD, netG], [optimizerD, optimizerG])
    torch.manual_seed(10 + cluster.rank)
    losses = []
    for draw in experiment.draws(cluster.rank, experiment.passes(16), 4, 1, 8, 8):
        real = (0.6 + 0.1 * draw).clamp(-1, 1)
        netD.zero_grad()
        label = torch.ones(4)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(4, 3, 1, 1))
        label.fill_(0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
        losses.append((fake.mean() - 0.6).abs().item())
    experiment.finish(cluster, losses, generator=netG, discriminator=netD)


if __name__ == "__main__":
    main()
