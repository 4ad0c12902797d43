"""The members of a group that continues without lost workers (`strategy.on_worker_loss: continue`).

The primary decides which workers are lost, and when lost workers become members again. It writes each new membership,
with a number, to the join store:

    members/<gang>/<generation>     {"number": 2, "lost": ["worker-1"], "joined": 0, "seats": [["worker-0", 1], …]}

`seats` lists the replicas and their numbers of ranks, in rank order. The ranks of a worker that is added to the run
follow those of all other workers. A lost worker that is started again returns in the following steps, in which k is the
number of the return. An added worker joins in the same steps.

    ready/<gang>/<generation>/<replica>/<attempt>   set by the worker when it has distributed its model
    returning/<gang>/<generation>   k               set by the keeper when a worker is waiting
    boundary/<gang>/<generation>    k               set by the first member when all members are at a step boundary
    members/<gang>/<generation>     {…, "joined": k}
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.environment import Environment

READY_S = 600.0
"""Longest time in seconds for which the first rank of a returning replica waits for the replica's other ranks."""


class Members(NamedTuple):
    """The members of a group, with the number of this membership."""

    number: int
    """The number of the membership: 0 at the start of a generation, increased by each loss and each return."""
    ranks: tuple[int, ...]
    joined: int = 0
    """The number of the last announced return that is complete: its workers are members, or have been lost again."""


class Membership:
    """The newest membership that the primary has decided."""

    def __init__(self, store: JoinStore, environment: Environment) -> None:
        self._replica_of: list[str] = []
        for trainer in environment.peers.trainers:
            if trainer.group == environment.group:
                self._replica_of += [trainer.name] * trainer.ranks
        self._store = store
        self._environment = environment
        self._place = f"{environment.gang}/{environment.generation}"
        self._condition = threading.Condition()
        self._newest = Members(0, tuple(range(environment.started_with or environment.group_size)))
        self._returning = 0
        store.watch(f"members/{self._place}", self._on_change)
        store.watch(f"returning/{self._place}", self._on_returning)
        # The watch reports the current membership with a delay, during which a returning worker would otherwise
        # believe that it is a member.
        value = store.try_get(f"members/{self._place}") if environment.attempt else None
        if value is not None:
            self._on_change(value)

    @property
    def newest(self) -> Members:
        return self._newest

    @property
    def returning(self) -> int:
        """The number of the last return that the primary has announced."""
        return self._returning

    def wait_for_change(self, number: int, within_s: float) -> bool:
        """Waits until there is a newer membership than `number`. Returns False if none appears in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._newest.number > number, within_s)

    def announce_training(self) -> None:
        """Reports that all ranks have completed a step. From then on, training may continue without a lost worker."""
        self._store.set(f"trains/{self._place}", b"1")

    def announce_boundary(self, number: int) -> None:
        """Informs the keeper that all members are at a step boundary, where they wait for returning workers."""
        self._store.set(f"boundary/{self._place}", b"%d" % number)

    def announce_ready(self) -> None:
        """Informs the keeper that all ranks of this returning replica are waiting for the state of a peer."""
        own = self._environment
        key = f"ready/{self._place}/{own.replica}/{own.attempt}"
        self._store.set(f"{key}/{own.local_rank}", b"1")
        if own.local_rank == 0:
            self._store.wait([f"{key}/{number}" for number in range(own.local_world_size)], READY_S)
            self._store.set(key, b"1")

    def _on_returning(self, value: bytes) -> None:
        self._returning = max(self._returning, int(value))

    def _on_change(self, value: bytes) -> None:
        about = json.loads(value)
        lost = set(about["lost"])
        with self._condition:
            if about["number"] > self._newest.number:
                if "seats" in about:
                    self._replica_of = [str(name) for name, ranks in about["seats"] for _ in range(ranks)]
                left = tuple(rank for rank, replica in enumerate(self._replica_of) if replica not in lost)
                self._newest = Members(about["number"], left, about.get("joined", 0))
                self._condition.notify_all()
