"""Trains a model with repeated blocks on batches that do not depend on the number of ranks.

    sharded.py STEPS [clip] [meta] [all-meta] [lost-buffer] [persistent] [tied] [nan=STEP]
               [accumulate] [bad-accumulate] [hand] [lbfgs] [twice] [buffers] [even] [clip-values] [save=STEP]
               [slow-copy]

Each rank prints a JSON object: the losses, the norms before clipping, and the bytes of its parameters, gradients and
optimizer state; the first rank also prints the final parameters and buffers.
"""

import json
import sys
import time

import torch
from torch import nn

import torchyard_roles as ty
from torchyard_roles.cluster import Cluster

BATCH = 16
FLAGS = dict((*word.split("="), "1")[:2] for word in sys.argv[2:])


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).tanh())


class Model(nn.Module):
    """A model whose sizes are not multiples of two or four."""

    def __init__(self) -> None:
        super().__init__()
        size = 16 if "even" in FLAGS else 7
        self.first = nn.Linear(5, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(3))
        if "tied" in FLAGS:
            self.blocks[2].up.weight = self.blocks[0].up.weight
        self.norm = nn.BatchNorm1d(size, affine=False) if "buffers" in FLAGS else nn.Identity()
        self.last = nn.Linear(size, 1)
        self.register_buffer("scale", torch.tensor([0.5]), persistent=bool({"all-meta", "persistent"} & FLAGS.keys()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x + self.norm(x)) * self.scale


class Position:
    """Counts finished steps, and is saved in checkpoints."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def storages(optimizer: torch.optim.Optimizer) -> int:
    """Returns the bytes of parameters, gradients and optimizer state; counts a storage that several tensors share only
    once.
    """
    tensors = [each for group in optimizer.param_groups for each in group["params"]]
    tensors += [each.grad for each in tensors if each.grad is not None]
    tensors += [each for state in optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    found = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local}
    return sum(found.values())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    if "lbfgs" in FLAGS:
        return torch.optim.LBFGS(model.parameters())
    weights = [each for each in model.parameters() if each.dim() > 1]
    biases = [each for each in model.parameters() if each.dim() == 1]
    return torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.01)


def step(cluster: Cluster, model: nn.Module, inputs: torch.Tensor, number: int) -> float:
    """Computes the gradients for this rank's part of a batch; returns the loss."""
    part = inputs.chunk(cluster.world_size)[cluster.rank or 0].to(cluster.device)
    if "accumulate" in FLAGS or "bad-accumulate" in FLAGS:
        pieces = part.chunk(2)
        with model.no_sync():
            (model(pieces[0]).square().mean() / 2).backward()
        if "bad-accumulate" in FLAGS:
            return 0.0
        loss = model(pieces[1]).square().mean() / 2
    else:
        loss = model(part).square().mean()
    if FLAGS.get("nan") == str(number) and cluster.rank == 1:
        loss = loss * float("nan")
    loss.backward()
    return loss.item()


def slow_down_copies(cluster: Cluster) -> None:
    """Delays each copy for a checkpoint, so a next step that did not wait for the copy would change the values."""
    saving = cluster._strategy.sharded_saving
    copy = saving._copy_values

    def slow_copy() -> None:
        time.sleep(0.3)
        copy()

    saving._copy_values = slow_copy


def main() -> None:
    steps = int(sys.argv[1])
    cluster = ty.join()
    torch.manual_seed(3 + (cluster.rank or 0))
    on_meta = "all-meta" in FLAGS or "lost-buffer" in FLAGS or ("meta" in FLAGS and not cluster.is_chief)
    with torch.device("meta" if on_meta else "cpu"):
        model = Model().to(torch.float64)
    if "hand" in FLAGS:
        cluster.distribute(model)
    optimizer = optimizer_of(model)
    model, optimizer = cluster.distribute(model, optimizer)
    if "twice" in FLAGS:
        other = nn.Linear(2, 2)
        cluster.distribute(other, torch.optim.SGD(other.parameters(), lr=0.1))
    if "slow-copy" in FLAGS:
        slow_down_copies(cluster)
    position = Position()
    cluster.checkpoint(position=position)
    losses, norms = [], []
    while position.step < steps:
        inputs = torch.randn(BATCH, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(position.step))
        optimizer.zero_grad()
        losses.append(step(cluster, model, inputs, position.step + 1))
        if "clip" in FLAGS:
            norm = cluster.clip_gradients(0.05)
            assert type(norm) is torch.Tensor
            norms.append(norm.item())
        if "clip-values" in FLAGS:
            cluster.clip_gradients(value=0.01)
        optimizer.step()
        position.step += 1
        if FLAGS.get("save") == str(position.step):
            cluster.checkpoint(now=True)
    found = {"losses": losses, "norms": norms, "bytes": storages(optimizer), "kind": type(model).__name__}
    state = {name: whole(each).tolist() for name, each in model.state_dict().items()}
    if cluster.is_chief and "even" not in FLAGS:  # The large model's state would fill the output pipe.
        found["state"] = state
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
