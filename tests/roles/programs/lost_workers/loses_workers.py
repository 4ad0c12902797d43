"""Trains on batches that depend on the rank and the step; some ranks kill themselves, and may return.

Usage: loses_workers.py STEPS [returns=COUNT] [like-nccl] [RANK:STEP:PLACE …]

A rank kills itself at the given place of the given step: forward, backward, step, join (when it joins a new group),
copy (when it sends the averages of the step to a rank that lacks them), or a number of milliseconds after the step
has begun. At the place miss, it does not kill itself but loses the averages of the step, as if its connections had
broken. A rank that has returned kills itself only at the places back (during the transfer of the state) and other
(its model differs). For these, STEP is the number of its return. Training lasts until workers have returned COUNT
times, and then for STEPS further steps. With `like-nccl`, gradients on the CPU are exchanged in the same way as
gradients on a GPU (`gloo_like_nccl`).

Each rank prints the members after every step. At the end, it prints a digest of its parameters, and the largest
difference from the parameters of a single process that computes the same batches for the same members.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from itertools import pairwise
from typing import Any

import gloo_like_nccl
import torch

import torchyard_roles
from torchyard_roles.strategies.gradient_averaging import GradientAverager
from torchyard_roles.strategies.replaceable_group import Interrupted, ReplaceableGroup

average_gradients = GradientAverager._average
averaged_over: list[int] = []
"""The ranks whose gradients were averaged in the last step. They may include a rank that has been lost since then."""


misses_averages: list[bool] = [False]


def record_ranks(averager: GradientAverager, kind: int, round_: int) -> object:
    found = average_gradients(averager, kind, round_)
    group = averager._group
    averaged_over[:] = getattr(group, "ranks", ())
    if misses_averages[0] and isinstance(group, ReplaceableGroup):
        misses_averages[0] = False
        group.membership.wait_for_change(group._members.number, 60)
        raise Interrupted("a worker was lost")
    return found


GradientAverager._average = record_ranks  # type: ignore[method-assign, assignment]


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 4)).double()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 * step + rank)
    batch = torch.randn(8, 64, dtype=torch.float64, generator=source)
    return (model(batch.to(next(model.parameters()).device)) ** 2).mean()


def alone(memberships: list[list[int]], device: torch.device) -> torch.nn.Module:
    model, optimizer = model_and_optimizer()
    model.to(device)
    for step, ranks in enumerate(memberships):
        optimizer.zero_grad()
        for rank in ranks:
            (loss_of(model, rank, step) / len(ranks)).backward()
        optimizer.step()
    return model


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class History:
    """The members of the group at each step so far. A returning worker gets this history from the others."""

    def __init__(self) -> None:
        self.memberships: list[list[int]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"memberships": self.memberships}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memberships[:] = state["memberships"]

    def steps_since_return(self, count: int) -> int:
        """Returns the number of steps since the `count`-th return of a worker, or -1 if there were fewer returns."""
        at = [0]
        for step, (before, after) in enumerate(pairwise(self.memberships), 1):
            at += [step] * len(set(after) - set(before))
        return len(self.memberships) - at[count] if len(at) > count else -1


def main(steps: int, *arguments: str) -> None:
    if "like-nccl" in arguments:
        gloo_like_nccl.install()
    cluster = torchyard_roles.join()
    rank = cluster.rank
    assert rank is not None
    returns = sum(int(each.partition("=")[2]) for each in arguments if "=" in each)
    kills = [each.split(":") for each in arguments if ":" in each]
    life = int(os.environ.get("TORCHYARD_RETURN", "0"))
    places = {(int(step), place) for who, step, place in kills if int(who) == rank}
    late = {place for step, place in places if step == life and place in ("back", "other")} if life else set()
    places = set() if life else {each for each in places if each[1] not in ("back", "other")}
    if "back" in late:
        ReplaceableGroup._run_in_thread = die  # type: ignore[method-assign]  # This simulates a killed process.
    if any(place == "join" for _, place in places):
        connect = ReplaceableGroup._open
        ReplaceableGroup._open = lambda group, members: die() if members.number else connect(group, members)  # type: ignore[method-assign]  # This simulates a killed process.
    model, optimizer = model_and_optimizer()
    if "other" in late:
        model.add_module("more", torch.nn.Linear(1, 1))
    model, optimizer = cluster.distribute(model, optimizer)
    seed = cluster.broadcast(17)  # A returning worker gets the result that the others had in the first call.
    history = History()
    cluster.checkpoint(history=history)
    memberships = history.memberships
    while (since := history.steps_since_return(returns)) < steps:
        step = len(memberships)
        if since < 0:
            time.sleep(0.2)  # Keeps the number of steps low, because the comparison repeats all of them.
        optimizer.zero_grad()
        misses_averages[0] = (step, "miss") in places
        if (step, "copy") in places:
            ReplaceableGroup._run_in_thread = die  # type: ignore[method-assign]  # This simulates a killed process.
        for delay in (int(place) / 1000 for at, place in places if at == step and place.isdecimal()):
            threading.Thread(target=lambda delay=delay: (time.sleep(delay), die()), daemon=True).start()
        loss = loss_of(model, rank, step)
        if (step, "forward") in places:
            die()
        if (step, "backward") in places:
            model[2].weight.register_post_accumulate_grad_hook(die)
        loss.backward()
        if (step, "step") in places:
            optimizer.register_step_post_hook(die)
        optimizer.step()
        members = cluster._strategy.members
        memberships.append(list(range(cluster.world_size)) if members is None else list(averaged_over))
        mean = cluster.mean(loss.detach()).item()
        line = {"step": step, "ranks": memberships[-1], "chief": cluster.is_chief, "mean": mean, "seed": seed}
        print(json.dumps(line | {"at": time.time()}), flush=True)
    values = [parameter.detach().cpu().view(-1).view(torch.uint8) for parameter in model.parameters()]
    digest = hashlib.sha256(bytes(torch.cat(values).tolist()))
    oracle = alone(memberships, cluster.device)
    far = max(float((p - q).detach().abs().max()) for p, q in zip(model.parameters(), oracle.parameters(), strict=True))
    print(json.dumps({"digest": digest.hexdigest(), "far": far}), flush=True)


main(int(sys.argv[1]), *sys.argv[2:])
