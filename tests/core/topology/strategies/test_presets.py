"""Tests that a preset sets the strategy, adds the pools that the strategy needs, and keeps the existing pools."""

from __future__ import annotations

import pytest

from torchyard_core.errors import UsageError
from torchyard_core.topology.checks.strategy import check_strategy
from torchyard_core.topology.document.edits import add_replicas, empty_topology, set_pins, set_program, set_strategy
from torchyard_core.topology.file import check_topology
from torchyard_core.topology.machine_types import machine
from torchyard_core.topology.model import Role, Shard, StrategyKind, Topology
from torchyard_core.topology.strategies.presets import (
    GROUPS,
    PRESETS,
    all_presets,
    preset,
    preset_topology,
    unused_replicas,
    with_preset,
)
from torchyard_core.topology.strategies.reduction_cost import reducers_for_bandwidth


def counts(topology: Topology) -> dict[str, int]:
    return {pool.role.value: pool.replicas for pool in topology.pools}


KEYS = [one.key for one in all_presets()]


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_on_an_empty_topology_is_one_without_problems(kind: StrategyKind) -> None:
    design, new = with_preset(empty_topology("x"), kind, has_gpus=True)
    assert design.strategy.kind is kind
    assert len(new) == sum(counts(design).values())
    assert list(check_strategy(design)) == []


def test_trainers_want_a_gpu_only_where_there_are_any() -> None:
    for has_gpus in (True, False):
        design, _ = with_preset(empty_topology("x"), StrategyKind.SANDBLASTER, has_gpus=has_gpus)
        assert {pool.role: pool.gpus for pool in design.pools} == {Role.WORKER: int(has_gpus), Role.PS: 0}


def test_what_the_topology_has_already_stays_as_it_is() -> None:
    before, _ = add_replicas(empty_topology("x"), Role.WORKER, 9)
    after, new = with_preset(before, StrategyKind.SANDBLASTER, has_gpus=True)
    assert counts(after) == {"worker": 9, "ps": 2}
    assert after.pools[0] == before.pools[0]
    assert new == ("ps-0", "ps-1")


def test_replicas_that_the_strategy_does_not_use_can_be_removed() -> None:
    before, _ = with_preset(empty_topology("x"), StrategyKind.REDUCTION_SERVER, has_gpus=True)
    before = set_pins(add_replicas(before, Role.EVALUATOR)[0], {"reducer-0": "a", "worker-0": "a"})
    unused = unused_replicas(before, StrategyKind.DOWNPOUR)
    assert unused == {Role.REDUCER: tuple(f"reducer-{n}" for n in range(counts(before)["reducer"]))}
    after, _ = with_preset(before, StrategyKind.DOWNPOUR, has_gpus=True, removes_unused=True)
    assert counts(after).keys() == {"worker", "evaluator", "ps"}
    assert after.pins == {"worker-0": "a"}
    assert list(check_strategy(after)) == []
    kept, _ = with_preset(before, StrategyKind.DOWNPOUR, has_gpus=True)
    assert [finding.code for finding in check_strategy(kept)] == ["strategy-ignores"]
    assert unused_replicas(after, StrategyKind.SANDBLASTER) == {}
    command = set_program(before, launcher="command", command=["x"])
    assert unused_replicas(command, StrategyKind.DOWNPOUR) == {}


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


# Tests of all presets, scale tiers and machine types


@pytest.mark.parametrize("key", KEYS)
def test_every_preset_is_a_whole_topology_without_errors(key: str) -> None:
    assert [problem for problem in check_topology(preset_topology(key)) if problem.severity == "error"] == []
    assert preset(key).group in GROUPS
    assert preset(key).title
    assert preset(key).sentence.endswith(".")


def test_the_preset_for_large_models_shards_them_also_on_cpus() -> None:
    for has_gpus in (True, False):
        design, _ = with_preset(empty_topology("x"), "fsdp", has_gpus=has_gpus)
        assert (design.strategy.kind, design.strategy.shard) == (StrategyKind.ALL_REDUCE, Shard.ALL)
        assert [(pool.replicas, pool.gpus) for pool in design.pools] == [(4, int(has_gpus))]


def test_presets_come_by_group_and_each_strategy_has_one_of_its_name() -> None:
    groups = [one.group for one in all_presets()]
    assert groups == sorted(groups, key=GROUPS.index)
    assert KEYS[: len(PRESETS)] == [kind.value for kind in PRESETS]


@pytest.mark.parametrize(
    ("key", "pools"),
    [
        ("basic", [(1, "n1-standard-4", 4, 15)]),
        ("standard_1", [(1, "n1-highcpu-8", 8, 7.2), (4, "n1-highcpu-8", 8, 7.2), (3, "n1-standard-4", 4, 15)]),
        ("premium_1", [(1, "n1-highcpu-16", 16, 14.4), (19, "n1-highcpu-16", 16, 14.4), (11, "n1-highmem-8", 8, 52)]),
        ("basic_gpu", [(1, "n1-standard-8", 8, 30)]),
        ("custom", [(1, "complex_model_m", 16, 14.4), (9, "complex_model_m", 16, 14.4), (3, "large_model", 8, 52)]),
    ],
)
def test_scale_tiers_have_cloudmls_counts_and_sizes(key: str, pools: list[tuple[int, str, int, float]]) -> None:
    made = preset_topology(key).pools
    assert [(pool.replicas, pool.machine, pool.cpus, pool.memory_gb) for pool in made] == pools
    for pool in made:
        of_machine = machine(pool.machine or "")
        assert (pool.cpus, pool.memory_gb) == (of_machine.cpus, of_machine.memory_gb)
    assert [pool.gpu_model for pool in made] == (["K80"] if key == "basic_gpu" else [None] * len(made))


@pytest.mark.parametrize(
    ("name", "cpus", "memory", "gpus", "model"),
    [
        ("standard", 4, 15, 0, None),
        ("large_model", 8, 52, 0, None),
        ("complex_model_l", 32, 28.8, 0, None),
        ("complex_model_l_gpu", 32, 120, 8, "K80"),
        ("complex_model_m_p100", 16, 60, 4, "P100"),
        ("large_model_v100", 8, 52, 1, "V100"),
        ("n1-highmem-96", 96, 624, 0, None),
        ("a2-highgpu-1g", None, None, 0, None),
    ],
)
def test_machine_types_have_sizes(
    name: str, cpus: int | None, memory: float | None, gpus: int, model: str | None
) -> None:
    known = machine(name)
    assert (known.cpus, known.memory_gb, known.gpus, known.gpu_model) == (cpus, memory, gpus, model)


@pytest.mark.parametrize(
    ("workers", "gbps", "reducer_gbps", "reducers"),
    [(8, 100, 32, 25), (5, 100, 32, 16), (1, 1, 100, 1), (4, 10, 10, 4)],
)
def test_reducers_for_vertex_have_the_workers_bandwidth(
    workers: int, gbps: float, reducer_gbps: float, reducers: int
) -> None:
    assert reducers_for_bandwidth(workers, gbps, reducer_gbps) == reducers


def test_the_reduction_server_preset_of_vertex_goes_by_that_rule_and_the_designs_own_workers() -> None:
    assert counts(preset_topology("vertex_reduction_server")) == {"worker": 8, "reducer": 25}
    before, _ = add_replicas(empty_topology("x"), Role.WORKER, 5)
    after, _ = with_preset(before, "vertex_reduction_server", has_gpus=True)
    assert counts(after) == {"worker": 5, "reducer": 16}


def test_a_tier_asks_for_no_gpu_on_hosts_without_gpus() -> None:
    after, _ = with_preset(empty_topology("x"), "basic_gpu", has_gpus=False)
    assert (after.pools[0].gpus, after.pools[0].gpu_model) == (0, None)


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        preset("standard")
    assert caught.value.hint == "Did you mean `standard_1`?"
