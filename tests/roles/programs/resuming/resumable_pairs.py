"""Trains a critic and a generator, each with its own optimizer. Each rank writes the exact losses of each batch to a
file.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

import torchyard_roles as ty

SAMPLES = 60


def main() -> None:
    folder, epochs, step_s, how = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    cluster = ty.join()
    torch.manual_seed(5 + cluster.rank)
    critic = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, 1))
    generator = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 6))
    judging = torch.optim.Adam(critic.parameters(), lr=0.01)
    making = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.9)
    if how == "calls":
        cluster.distribute(critic, judging)
        cluster.distribute(generator, making)
    else:
        cluster.distribute([critic, generator], [judging, making])
    inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    loader = cluster.loader(torch.utils.data.TensorDataset(inputs), batch_size=4, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(judging, step_size=7, gamma=0.9)
    cluster.checkpoint(scheduler=scheduler)
    with (folder / f"losses.{cluster.rank}").open("a") as log:
        for epoch in range(epochs):
            for (real,) in loader:
                time.sleep(step_s)
                fake = generator(torch.randn(len(real), 3))
                judging.zero_grad()
                loss = critic(fake.detach()).square().mean() + (critic(real) - 1).square().mean()
                loss.backward()
                judging.step()
                scheduler.step()
                made = torch.zeros(())
                if scheduler.last_epoch % 2 == 0:
                    making.zero_grad()
                    made = (critic(generator(torch.randn(len(real), 3))) - 1).square().mean()
                    made.backward()
                    making.step()
                step = scheduler.last_epoch
                log.write(f"{step} {epoch} {loss.item().hex()} {made.item().hex()}\n")
                log.flush()


if __name__ == "__main__":
    main()
