"""The first ranks of worker groups that train independently. Only these ranks exchange data with other groups.

This module lists the addresses of the first ranks, and runs functions on a first rank while the other ranks of its
group wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.exchange.tensor_connection import Peer

T = TypeVar("T")

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
        except BaseException as error:  # The calling thread re-raises this exception.
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
