"""Ranks of worker groups that train independently: the first rank of each group, and the end of a group."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, RolesError
from torchyard_roles.exchange.tensor_connection import Peer

TOGETHER_S = 10.0


def first_ranks(environment: Environment) -> list[tuple[int, Peer]]:
    """Returns (group, address of the group's first rank) in the order of groups, the chief's group first.

    Raises EnvironmentProblem if the environment does not contain the addresses.
    """
    first: dict[int, Peer] = {}
    for trainer in environment.peers.trainers:
        first.setdefault(trainer.group, Peer(trainer.name, trainer.address, trainer.port))
    if len(first) != environment.groups or environment.group not in first or not environment.key:
        raise EnvironmentProblem(
            f"There are {environment.groups} worker groups, but TORCHYARD_PEERS and TORCHYARD_KEY lack their "
            "addresses or the key.",
            f"The groups of {environment.strategy} meet with what `torchyard run` gives them: start it so, with "
            "program.launcher torch.",
        )
    return sorted(first.items())


def wait_for_all_ranks() -> None:
    """Waits until all ranks of the group have finished their last collective, for at most TOGETHER_S.

    A rank in a collective of gloo fails when another rank closes its connections.
    """
    store = dist.distributed_c10d._get_default_store()
    with suppress(RuntimeError, RolesError):
        store.set(f"group/finished/{dist.get_rank()}", "1")
        store.wait([f"group/finished/{rank}" for rank in range(dist.get_world_size())], timedelta(seconds=TOGETHER_S))
