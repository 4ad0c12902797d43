"""Tests of the memberships that ranks read from the join store."""

from __future__ import annotations

import json
from typing import Any

from torchyard_roles.coordination.membership import Membership
from torchyard_roles.environment import Environment
from torchyard_roles.peers import Peers, TrainerAddress

PEERS = Peers(trainers=tuple(TrainerAddress(f"worker-{number}", "10.0.0.1", 1, 1, 0) for number in range(2)))


class Store:
    """A join store that delivers a change only when the test calls `tell`."""

    def __init__(self) -> None:
        self.watches: dict[str, Any] = {}

    def watch(self, key: str, then: Any) -> None:
        self.watches[key] = then

    def try_get(self, key: str) -> None:
        return None

    def tell(self, **membership: Any) -> None:
        self.watches["members/trainers/0"](json.dumps(membership).encode())


def of(store: Any, **fields: Any) -> Membership:
    return Membership(store, Environment(**{"group_size": 2, "peers": PEERS, **fields}))


def test_ranks_learn_of_added_replicas_with_the_membership() -> None:
    store = Store()
    membership = of(store)
    seats = [["worker-0", 1], ["worker-1", 1], ["worker-2", 2]]
    store.tell(number=1, lost=["worker-2"], joined=0, seats=seats)
    assert membership.newest.ranks == (0, 1)
    store.tell(number=2, lost=["worker-1"], joined=1, seats=seats)
    assert membership.newest == (2, (0, 2, 3), 1)


def test_an_added_worker_is_no_member_before_it_has_joined() -> None:
    store = Store()
    membership = of(store, group_size=3, rank=2, attempt=1, started_with=2)
    assert membership.newest.ranks == (0, 1)
