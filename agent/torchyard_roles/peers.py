"""The servers, reducers and trainers of a run with their addresses, read from TORCHYARD_PEERS."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchyard_roles.errors import EnvironmentProblem


class PeerAddress(NamedTuple):
    """The address of a process that listens, such as a server or a reducer."""

    name: str
    """The name of the replica, such as `ps-0`."""
    address: str
    port: int


class TrainerAddress(NamedTuple):
    """The address of a trainer replica. Its process with local rank 0 may listen on the port."""

    name: str
    address: str
    port: int
    ranks: int
    """The replica's number of processes."""
    group: int
    """The worker group of the replica."""


@dataclass(frozen=True)
class Peers:
    """The current peers by role, each role in the order of the plan. Trainers are in rank order."""

    ps: tuple[PeerAddress, ...] = ()
    reducer: tuple[PeerAddress, ...] = ()
    trainers: tuple[TrainerAddress, ...] = ()

    def trainer_process(self, rank: int, group: int | None = None) -> tuple[str, str] | None:
        """Returns the name and address of the trainer process with this rank in the run, or in `group` if given.

        Returns None if the process is not listed.
        """
        for trainer in self.trainers:
            if group in (None, trainer.group):
                if rank < trainer.ranks:
                    return f"{trainer.name}.{rank}" if trainer.ranks > 1 else trainer.name, trainer.address
                rank -= trainer.ranks
        return None


def read_peers(text: str) -> Peers:
    """Parses TORCHYARD_PEERS. An empty text means that there are no peers.

    Raises EnvironmentProblem if the text is invalid.
    """
    if not text:
        return Peers()
    try:
        peers = json.loads(text)
        return Peers(
            tuple(_peer(one) for one in peers.get("ps", ())),
            tuple(_peer(one) for one in peers.get("reducer", ())),
            tuple(_trainer(one) for one in peers.get("trainers", ())),
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EnvironmentProblem(f"TORCHYARD_PEERS cannot be read: {error}.") from error


def _peer(fields: Any) -> PeerAddress:
    name, address, port = fields
    return PeerAddress(str(name), str(address), int(port))


def _trainer(fields: Any) -> TrainerAddress:
    name, address, port, ranks, group = fields
    return TrainerAddress(str(name), str(address), int(port), int(ranks), int(group))
