"""The first ranks of worker groups that train independently, which exchange with other groups.

This module lists their addresses, makes calls on a first rank while the other ranks of its group wait, and waits for
all ranks of a group at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, RolesError
from torchyard_roles.exchange.tensor_connection import Peer

T = TypeVar("T")

TOGETHER_S = 10.0
BEAT_S = 5.0
"""Interval in seconds of the messages that a first rank sends to its group while it waits for servers or groups."""


def first_ranks(environment: Environment) -> list[tuple[int, Peer]]:
    """Returns the number of each group and the address of its first rank, in the order of groups.

    The chief's group comes first. Raises EnvironmentProblem if the environment does not contain the addresses.
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

    If a rank closed its connections earlier, gloo collectives on other ranks would fail.
    """
    store = dist.distributed_c10d._get_default_store()
    with suppress(RuntimeError, RolesError):
        store.set(f"group/finished/{dist.get_rank()}", "1")
        store.wait([f"group/finished/{rank}" for rank in range(dist.get_world_size())], timedelta(seconds=TOGETHER_S))


def call_with_beats(call: Callable[[], T], beat: Callable[[], object]) -> T:
    """Runs `call` in a thread, and returns its result or raises its exception.

    Args:
        beat: A function that is called periodically during `call`. It sends a message to the other ranks of the group,
            whose collective call would otherwise time out.
    """
    results: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # The waiting thread raises this exception again.
            problems.append(error)

    thread = threading.Thread(target=run, name="first-rank", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(BEAT_S)
        if problems:
            break
        if thread.is_alive():
            beat()
    if problems:
        raise problems[0]
    return results[0]
