"""Tests of the edges and groups that the canvas draws for each strategy."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.topology.model import Launcher, Pool, Program, Role, Shard, Strategy, StrategyKind, Topology
from torchyard_core.topology.strategies.topology_traffic import traffic_of
from torchyard_core.topology.strategies.traffic import Pattern, Traffic

Kind = StrategyKind


def design(kind: StrategyKind, *pools: tuple[Role, int], launcher: str = "torch", **settings: Any) -> Topology:
    return Topology(
        version=1,
        name="x",
        strategy=Strategy(kind=kind, **settings),
        pools=tuple(Pool(name=f"p{at}", role=role, replicas=count) for at, (role, count) in enumerate(pools)),
        program=Program(launcher=Launcher(launcher), script="train.py"),
    )


def pairs(traffic: Traffic) -> list[tuple[str, str]]:
    return [pair for bundle in traffic.bundles for pair in bundle.pairs()]


def test_all_reduce_is_a_ring_of_all_trainers_the_chief_first() -> None:
    traffic = traffic_of(design(Kind.ALL_REDUCE, (Role.WORKER, 2), (Role.CHIEF, 1), (Role.PS, 1)))
    assert pairs(traffic) == [("chief-0", "worker-0"), ("worker-0", "worker-1"), ("worker-1", "chief-0")]
    assert traffic.bundles[0].in_step
    assert traffic.groups == ()


def test_a_trainer_by_itself_has_no_edges_and_two_have_one() -> None:
    assert traffic_of(design(Kind.ALL_REDUCE, (Role.WORKER, 1))) == Traffic()
    assert traffic_of(design(Kind.ALL_REDUCE, (Role.WORKER, 2))).bundles[0].count == 1


def test_sandblaster_joins_every_trainer_with_every_server() -> None:
    traffic = traffic_of(design(Kind.SANDBLASTER, (Role.CHIEF, 1), (Role.WORKER, 2), (Role.PS, 2)))
    assert set(pairs(traffic)) == {(t, f"ps-{s}") for t in ("chief-0", "worker-0", "worker-1") for s in (0, 1)}
    assert not traffic.trainers_reduce


def test_each_two_pools_have_a_bundle_whose_edges_are_listed_on_demand_only() -> None:
    traffic = traffic_of(design(Kind.SANDBLASTER, (Role.CHIEF, 1), (Role.WORKER, 4000), (Role.PS, 500)))
    assert [bundle.count for bundle in traffic.bundles] == [500, 2_000_000]
    assert next(traffic.bundles[1].pairs()) == ("worker-0", "ps-0")


@pytest.mark.parametrize(
    ("reducers", "pattern", "trainers_reduce"), [(4, Pattern.SERVE, False), (2, Pattern.SERVE, True)]
)
def test_reducers_that_are_too_few_have_the_trainers_reduce_too(
    reducers: int, pattern: Pattern, trainers_reduce: bool
) -> None:
    traffic = traffic_of(design(Kind.REDUCTION_SERVER, (Role.WORKER, 4), (Role.REDUCER, reducers)))
    assert {bundle.pattern for bundle in traffic.bundles} == {pattern}
    assert traffic.trainers_reduce is trainers_reduce


def test_two_workers_are_a_ring_whatever_reducers_there_are() -> None:
    traffic = traffic_of(design(Kind.REDUCTION_SERVER, (Role.WORKER, 2), (Role.REDUCER, 4)))
    assert [bundle.pattern for bundle in traffic.bundles] == [Pattern.RING]


def test_downpour_has_groups_that_push_and_pull_out_of_step() -> None:
    traffic = traffic_of(design(Kind.DOWNPOUR, (Role.CHIEF, 1), (Role.WORKER, 5), (Role.PS, 2), worker_groups=2))
    assert [(group.serves, group.number, group.members) for group in traffic.groups] == [
        (False, 0, ("chief-0", "worker-0", "worker-1", "worker-2")),
        (False, 1, ("worker-3", "worker-4")),
    ]
    assert len(pairs(traffic)) == 6 * 2
    assert not any(bundle.in_step for bundle in traffic.bundles)


def test_only_the_first_workers_of_sharded_downpour_groups_exchange_with_the_servers() -> None:
    roles = (Role.WORKER, 4), (Role.PS, 2)
    traffic = traffic_of(design(Kind.DOWNPOUR, *roles, worker_groups=2, shard=Shard.ALL))
    assert pairs(traffic) == [(worker, server) for worker in ("worker-0", "worker-2") for server in ("ps-0", "ps-1")]
    assert [group.number for group in traffic.groups] == [0, 1]


def test_diloco_averages_among_the_first_workers_of_the_groups() -> None:
    traffic = traffic_of(design(Kind.DILOCO, (Role.CHIEF, 1), (Role.WORKER, 5), worker_groups=3))
    assert pairs(traffic) == [("chief-0", "worker-2"), ("worker-2", "worker-4"), ("worker-4", "chief-0")]
    assert [bundle.pattern for bundle in traffic.bundles] == [Pattern.AVERAGE]
    assert not any(bundle.in_step for bundle in traffic.bundles)
    assert [group.number for group in traffic.groups] == [0, 1, 2]
    assert traffic_of(design(Kind.DILOCO, (Role.WORKER, 2))).bundles[0].count == 1
    assert traffic_of(design(Kind.DILOCO, (Role.WORKER, 2), worker_groups=1)) == Traffic(trainers_reduce=True)


def test_dilocos_servers_or_reducers_exchange_with_the_first_workers_of_the_groups() -> None:
    for role in (Role.PS, Role.REDUCER):
        traffic = traffic_of(design(Kind.DILOCO, (Role.WORKER, 4), (role, 2), worker_groups=2))
        servers = [f"{role}-{number}" for number in range(2)]
        assert pairs(traffic) == [(worker, server) for worker in ("worker-0", "worker-2") for server in servers]
        assert not any(bundle.in_step for bundle in traffic.bundles)
        assert [group.number for group in traffic.groups] == [0, 1]
        assert traffic.has_reducers is (role is Role.REDUCER)


def test_server_groups_are_dealt_to_worker_groups() -> None:
    traffic = traffic_of(design(Kind.DOWNPOUR, (Role.WORKER, 3), (Role.PS, 3), worker_groups=3, server_groups=2))
    assert set(pairs(traffic)) == {
        *(("worker-0", server) for server in ("ps-0", "ps-1")),
        ("worker-1", "ps-2"),
        *(("worker-2", server) for server in ("ps-0", "ps-1")),
    }
    assert [group.members for group in traffic.groups if group.serves] == [("ps-0", "ps-1"), ("ps-2",)]


def test_hogwilds_groups_stand_in_a_ring_of_neighbours() -> None:
    traffic = traffic_of(design(Kind.HOGWILD, (Role.WORKER, 4)))
    ring = [("worker-0", "worker-1"), ("worker-1", "worker-2"), ("worker-2", "worker-3"), ("worker-3", "worker-0")]
    assert pairs(traffic) == ring
    assert traffic.trainers_reduce
    assert len(traffic.groups) == 4
    two = traffic_of(design(Kind.HOGWILD, (Role.WORKER, 4), worker_groups=2))
    assert pairs(two) == [("worker-0", "worker-2"), ("worker-1", "worker-3")]


@pytest.mark.parametrize("kind", list(Kind))
def test_the_evaluator_has_a_line_from_the_chief_whatever_the_strategy(kind: StrategyKind) -> None:
    bundles = traffic_of(design(kind, (Role.WORKER, 2), (Role.EVALUATOR, 1))).of(Pattern.CHECKPOINTS)
    assert [list(bundle.pairs()) for bundle in bundles] == [[("worker-0", "evaluator-0")]]
    assert not bundles[0].in_step


@pytest.mark.parametrize("kind", [Kind.SANDBLASTER, Kind.REDUCTION_SERVER, Kind.DOWNPOUR])
def test_without_its_servers_a_strategy_has_no_edges_yet(kind: StrategyKind) -> None:
    assert traffic_of(design(kind, (Role.WORKER, 4))).bundles == ()


def test_a_command_launcher_has_no_traffic() -> None:
    assert traffic_of(design(Kind.SANDBLASTER, (Role.WORKER, 2), (Role.PS, 1), launcher="command")) == Traffic()
