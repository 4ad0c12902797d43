"""Tests of reduction_server with `on_worker_loss: continue`, in one process.

`tests/agent/keeper/test_lost_workers.py` tests runs that lose workers.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchyard_roles.coordination.membership import Members
from torchyard_roles.environment import Environment, read
from torchyard_roles.errors import PeerLost, ProtocolError, RolesError, UsageProblem
from torchyard_roles.strategies.reduction_server.continuing_reduction_server import (
    ContinuingReductionServer,
    ReducedGroup,
)
from torchyard_roles.strategies.registry import choose
from torchyard_roles.strategies.replaceable_group import Interrupted

pytestmark = pytest.mark.train


def environment_of(*ranks: int) -> Environment:
    peers = {
        "reducer": [["reducer-0", "127.0.0.1", 1]],
        "trainers": [[f"worker-{n}", "127.0.0.1", 2 + n, count, 0] for n, count in enumerate(ranks)],
    }
    return read(
        {
            "TORCHYARD_STRATEGY": "reduction_server",
            "TORCHYARD_OPTIONS": json.dumps({"kind": "reduction_server", "on_worker_loss": "continue"}),
            "TORCHYARD_PEERS": json.dumps(peers),
            "TORCHYARD_REPLICA": "worker-0",
            "TORCHYARD_RANK": "0",
            "TORCHYARD_WORLD_SIZE": str(sum(ranks)),
        }
    )


@pytest.mark.parametrize(
    ("error", "is_news", "expected"),
    [
        (PeerLost("worker-1", "127.0.0.1", "it closed the connection"), False, Interrupted),
        (PeerLost("reducer-0", "127.0.0.1", "it did not come back"), False, PeerLost),
        (ProtocolError("the trainers' models differ"), False, ProtocolError),
        (ProtocolError("Membership 0 of the trainers was replaced by a newer one."), True, Interrupted),
    ],
)
def test_an_exchange_is_repeated_after_the_loss_of_a_worker_but_not_after_an_error_of_a_reducer(
    error: RolesError, is_news: bool, expected: type[Exception]
) -> None:
    group: Any = object.__new__(ReducedGroup)
    group._environment = environment_of(1, 1, 1)
    group._members = Members(0, (0, 1, 2))
    group.membership = SimpleNamespace(wait_for_change=lambda number, within_s: is_news)
    with pytest.raises(expected):
        group._interrupt(error)


def test_workers_of_several_processes_are_refused() -> None:
    strategy = choose(environment_of(1, 2, 1))
    assert isinstance(strategy, ContinuingReductionServer)
    with pytest.raises(UsageProblem, match="a worker has several processes"):
        strategy.start(torch.device("cpu"))
