"""Trains with dropout, shuffling and a scheduler. Each rank writes the exact loss of each step to a file."""

import sys
import time
from pathlib import Path

import torch

import torchyard_roles as ty

SAMPLES = 60


class Noisy(torch.utils.data.Dataset):
    """Samples with random noise, as data augmentation adds."""

    def __init__(self) -> None:
        self.inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.inputs[index] + 0.01 * torch.randn(6)


def main() -> None:
    folder, epochs, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    cluster = ty.join()
    torch.manual_seed(5 + cluster.rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.4), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(Noisy(), batch_size=4, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    each_epoch = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    cluster.checkpoint(scheduler=scheduler)
    slow = folder / f"slow.{cluster.rank}"
    with (folder / f"losses.{cluster.rank}").open("a") as log:
        for epoch in range(epochs):
            for batch in loader:
                time.sleep(0.5 if slow.exists() else step_s)
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                step = scheduler.last_epoch
                log.write(f"{step} {epoch} {loss.item().hex()} {optimizer.param_groups[0]['lr']:.12f}\n")
                log.flush()
            each_epoch.step()
    counts = {int(state["step"]) for state in optimizer.state.values()}
    # Written as one piece, because other threads write to the same pipe.
    sys.stdout.write(f"trained to the end; the optimizer counts {' '.join(map(str, counts))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
