"""Tests of moving replicas between groups, which changes only the number of groups or the order of replicas."""

from __future__ import annotations

import pytest

from tests.core.examples import topology
from torchyard_core.errors import UsageError
from torchyard_core.topology.document.regrouping import regrouped, regrouping
from torchyard_core.topology.model import Topology
from torchyard_core.topology.strategies.replica_groups import replica_groups

WORKERS = "{name: workers, role: worker, replicas: 6, gpus: 1}"
SERVERS = "{name: servers, role: ps, replicas: 4}"
CHIEF = "{name: chief, role: chief, replicas: 1}"
DOWNPOUR = "{kind: downpour, worker_groups: 2}"
PLACES = {f"worker-{number}": f"gpu-a:{number}" for number in range(6)}


def downpour(*pools: str, strategy: str = DOWNPOUR, pins: str = "{}") -> Topology:
    return topology(*pools, strategy=strategy, pins=pins)


def moved(value: Topology, names: list[str], target: str) -> Topology:
    return regrouped(value, regrouping(value, names, target), PLACES)


def groups(value: Topology) -> dict[str, tuple[str, ...]]:
    return {group.key: group.members for group in replica_groups(value)}


def test_every_replica_is_in_one_group() -> None:
    value = downpour(CHIEF, WORKERS, SERVERS, "{name: eval, role: evaluator, replicas: 1}")
    assert groups(value) == {
        "trainers:0": ("chief-0", "worker-0", "worker-1", "worker-2"),
        "trainers:1": ("worker-3", "worker-4", "worker-5"),
        "servers": ("ps-0", "ps-1", "ps-2", "ps-3"),
        "evaluators": ("evaluator-0",),
    }
    assert list(groups(topology(WORKERS))) == ["trainers"]


def test_a_replica_joins_a_group_by_an_exchange_with_the_nearest_member() -> None:
    value = downpour(WORKERS, SERVERS)
    after = moved(value, ["worker-1"], "trainers:1")
    assert after.pins == {"worker-1": "gpu-a:3", "worker-3": "gpu-a:1"}
    assert (after.pools, after.strategy) == (value.pools, value.strategy)
    assert moved(value, ["worker-4"], "trainers:0").pins == {"worker-4": "gpu-a:2", "worker-2": "gpu-a:4"}


def test_a_drop_on_a_member_exchanges_with_that_one() -> None:
    value = downpour(WORKERS, SERVERS, pins='{worker-0: "gpu-b"}')
    assert moved(value, ["worker-0"], "trainers:1/worker-5").pins == {"worker-0": "gpu-a:5", "worker-5": "gpu-b"}
    assert moved(value, ["worker-4"], "trainers:1/worker-5").pins == {
        "worker-0": "gpu-b",
        "worker-4": "gpu-a:5",
        "worker-5": "gpu-a:4",
    }


def test_a_whole_group_that_moves_to_another_leaves_one_group_fewer() -> None:
    value = downpour(WORKERS, SERVERS)
    after = moved(value, ["worker-3", "worker-4", "worker-5"], "trainers:0")
    assert after.strategy.worker_groups == 1
    assert (after.pins, after.pools) == ({}, value.pools)


def test_a_new_group_contains_the_replica_that_was_moved() -> None:
    value = downpour(WORKERS, SERVERS)
    after = moved(value, ["worker-5"], "")
    assert (after.strategy.worker_groups, after.pins) == (3, {})
    after = moved(value, ["worker-0"], "")
    assert after.strategy.worker_groups == 3
    assert after.pins == {"worker-0": "gpu-a:4", "worker-4": "gpu-a:0"}
    assert moved(value, ["ps-3"], "").strategy.server_groups == 2


def test_a_move_inside_a_group_changes_nothing() -> None:
    value = downpour(WORKERS, SERVERS)
    assert moved(value, ["worker-0"], "trainers:0") == value


@pytest.mark.parametrize(
    ("names", "target", "reason"),
    [
        (["chief-0"], "trainers:1", "the chief always trains in the first worker group"),
        (["ps-0"], "trainers:0", "another role"),
        (["ps-0", "worker-0"], "trainers:1", "one kind at a time"),
        (["worker-0", "worker-1", "worker-2"], "", "2 replicas"),
        (["evaluator-0"], "", "choose a strategy with several"),
    ],
)
def test_an_impossible_move_gives_its_reason(names: list[str], target: str, reason: str) -> None:
    value = downpour(CHIEF, WORKERS, SERVERS, "{name: eval, role: evaluator, replicas: 1}")
    with pytest.raises(UsageError, match=reason):
        regrouping(value, names, target)


def test_groups_need_an_asynchronous_strategy_and_a_replica_each() -> None:
    with pytest.raises(UsageError, match="All-reduce has one worker group"):
        regrouping(topology(WORKERS), ["worker-0"], "")
    each = downpour(WORKERS, SERVERS, strategy="{kind: downpour}")
    with pytest.raises(UsageError, match="there can be 6 at most"):
        regrouping(each, ["worker-0"], "")


def test_replicas_of_different_pools_keep_their_order() -> None:
    value = downpour("{name: fast, role: worker, replicas: 3}", "{name: slow, role: worker, replicas: 3}", SERVERS)
    with pytest.raises(UsageError, match="`fast`"):
        regrouping(value, ["worker-0"], "trainers:1")


def test_replicas_without_a_place_have_nothing_to_exchange() -> None:
    value = downpour(WORKERS, SERVERS)
    with pytest.raises(UsageError, match="no place yet"):
        regrouped(value, regrouping(value, ["worker-0"], "trainers:1"), {})
