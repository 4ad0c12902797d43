"""A preset sets the strategy and adds what it needs; what is there already is somebody's."""

from __future__ import annotations

import pytest

from torchyard_core.topology.checks_strategy import check_strategy
from torchyard_core.topology.edits import add_replicas, empty_topology, set_strategy
from torchyard_core.topology.model import Role, StrategyKind, Topology
from torchyard_core.topology.presets import PRESETS, with_preset


def counts(topology: Topology) -> dict[str, int]:
    return {pool.role.value: pool.replicas for pool in topology.pools}


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_on_an_empty_design_is_one_without_problems(kind: StrategyKind) -> None:
    design, new = with_preset(empty_topology("x"), kind, has_gpus=True)
    assert design.strategy.kind is kind
    assert len(new) == sum(counts(design).values())
    assert list(check_strategy(design)) == []


def test_trainers_want_a_gpu_only_where_there_are_any() -> None:
    for has_gpus in (True, False):
        design, _ = with_preset(empty_topology("x"), StrategyKind.SANDBLASTER, has_gpus=has_gpus)
        assert {pool.role: pool.gpus for pool in design.pools} == {Role.WORKER: int(has_gpus), Role.PS: 0}


def test_what_the_design_has_already_stays_as_it_is() -> None:
    before, _ = add_replicas(empty_topology("x"), Role.WORKER, 9)
    after, new = with_preset(before, StrategyKind.SANDBLASTER, has_gpus=True)
    assert counts(after) == {"worker": 9, "ps": 2}
    assert after.pools[0] == before.pools[0]
    assert new == ("ps-0", "ps-1")


@pytest.mark.parametrize(("workers", "reducers"), [(2, 1), (4, 3), (8, 5), (16, 9)])
def test_reducers_are_as_many_as_beat_the_ring(workers: int, reducers: int) -> None:
    before, _ = add_replicas(empty_topology("x"), Role.WORKER, workers)
    after, _ = with_preset(before, StrategyKind.REDUCTION_SERVER, has_gpus=False)
    assert counts(after)["reducer"] == reducers


def test_settings_of_the_strategy_before_are_gone_and_groups_fit_the_workers() -> None:
    before, _ = add_replicas(empty_topology("x"), Role.WORKER, 1)
    before = set_strategy(before, kind="hogwild", sync_every=3, max_staleness=2)
    after, _ = with_preset(before, StrategyKind.DOWNPOUR, has_gpus=False)
    assert after.strategy.model_dump(exclude_unset=True) == {"kind": StrategyKind.DOWNPOUR, "worker_groups": 1}
