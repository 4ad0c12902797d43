"""Who takes part in a run, and where each is reached (TORCHYARD_PEERS)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchyard_roles.errors import EnvironmentProblem


class PeerAddress(NamedTuple):
    """Where a server or reducer listens."""

    name: str
    """Its replica, such as `ps-0`."""
    address: str
    port: int


class TrainerAddress(NamedTuple):
    """A trainer, and the port that its replica may listen at (its local rank 0)."""

    name: str
    address: str
    port: int
    ranks: int
    """How many processes it is."""
    group: int
    """Its worker group."""


@dataclass(frozen=True)
class Peers:
    """Those that take part now, each kind in plan order; trainers in rank order."""

    ps: tuple[PeerAddress, ...] = ()
    reducer: tuple[PeerAddress, ...] = ()
    trainers: tuple[TrainerAddress, ...] = ()


def read_peers(text: str) -> Peers:
    """From TORCHYARD_PEERS; nobody without it. Raises EnvironmentProblem for what it cannot be."""
    if not text:
        return Peers()
    try:
        said = json.loads(text)
        return Peers(
            tuple(_place(one) for one in said.get("ps", ())),
            tuple(_place(one) for one in said.get("reducer", ())),
            tuple(_trainer(one) for one in said.get("trainers", ())),
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EnvironmentProblem(f"TORCHYARD_PEERS cannot be read: {error}.") from error


def _place(said: Any) -> PeerAddress:
    name, address, port = said
    return PeerAddress(str(name), str(address), int(port))


def _trainer(said: Any) -> TrainerAddress:
    name, address, port, ranks, group = said
    return TrainerAddress(str(name), str(address), int(port), int(ranks), int(group))
