from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.core.examples import EVERY_KEY, topology
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import (
    EndsWith,
    GpuIds,
    Launcher,
    OnNan,
    PlacementRule,
    ReductionOrder,
    Role,
    StrategyKind,
    TfMasterName,
)
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.worker_groups import worker_groups


def test_every_key_of_the_format_is_read() -> None:
    read = topology_from_text(EVERY_KEY)
    assert read.problems == ()
    assert read.topology is not None
    strategy, program = read.topology.strategy, read.topology.program
    assert (strategy.kind, strategy.worker_groups) == (StrategyKind.DOWNPOUR, 2)
    assert (strategy.reduction_order, strategy.on_nan) == (ReductionOrder.RANK, OnNan.FAIL)
    assert [pool.role for pool in read.topology.pools] == [Role.CHIEF, Role.WORKER, Role.PS, Role.EVALUATOR]
    workers, servers, evaluators = read.topology.pools[1:]
    assert (workers.min_replicas, workers.hosts, workers.placement) == (2, ("gpu-a", "gpu-b"), PlacementRule.SPREAD)
    assert (servers.machine, servers.cpus, servers.memory_gb) == ("n1-highmem-8", 4, 16)
    assert (evaluators.gpu_model, evaluators.gpu_memory_gb, evaluators.labels) == ("A100", 40, {"rack": "r1"})
    assert read.topology.pins == {"worker-3": "gpu-b:2"}
    assert program.setup == ("module load cuda/12.4", "source .venv/bin/activate")
    assert (program.tf_master_name, program.gpu_ids) == (TfMasterName.CHIEF, GpuIds.UUID)
    assert program.checkpoint_dir is None


def test_what_is_left_out_has_the_format_s_defaults() -> None:
    plain = topology("{name: w, role: worker, replicas: 2}", strategy="{}")
    strategy, pool, program = plain.strategy, plain.pools[0], plain.program
    assert (strategy.kind, strategy.worker_groups, strategy.server_groups) == (StrategyKind.NONE, None, 1)
    assert (strategy.push_every, strategy.pull_every, strategy.sync_every) == (1, 1, 8)
    assert (strategy.max_staleness, strategy.backup_workers, strategy.warm_start_steps) == (16, 0, 0)
    assert strategy.bucket_mb == 64
    assert (pool.gpus, pool.hosts, pool.placement, pool.min_replicas) == (0, (), None, None)
    assert (program.launcher, program.workdir, program.max_restarts) == (Launcher.TORCH, ".", 2)
    assert (program.stop_grace_s, program.failure_grace_s, program.host_wait_s) == (30, 2, 600)
    assert (program.checkpoint_every_s, program.warm_spares) == (600, True)


def test_a_topology_cannot_be_changed_in_place() -> None:
    plain = topology("{name: w, role: worker, replicas: 2}")
    with pytest.raises(ValidationError):
        plain.name = "other"


def test_replicas_are_numbered_per_role_through_pools_in_order() -> None:
    several = topology(
        "{name: slow, role: worker, replicas: 2}",
        "{name: eval, role: evaluator, replicas: 1}",
        "{name: head, role: chief, replicas: 1}",
        "{name: fast, role: worker, replicas: 1}",
    )
    replicas = replicas_of(several)
    assert [(replica.name, replica.pool.name) for replica in replicas] == [
        ("chief-0", "head"),
        ("worker-0", "slow"),
        ("worker-1", "slow"),
        ("worker-2", "fast"),
        ("evaluator-0", "eval"),
    ]


@pytest.mark.parametrize(
    ("workers", "groups", "sizes"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (7, 3, [3, 2, 2]), (3, None, [1, 1, 1])]
)
def test_worker_groups_are_contiguous_blocks_and_the_larger_come_first(
    workers: int, groups: int | None, sizes: list[int]
) -> None:
    cut = topology(
        f"{{name: w, role: worker, replicas: {workers}}}",
        strategy=f"{{kind: hogwild, worker_groups: {groups or 'null'}}}",
    )
    members = worker_groups(cut, replicas_of(cut))
    assert [len(group) for group in members] == sizes
    assert [replica.index for group in members for replica in group] == list(range(workers))


def test_the_chief_trains_in_group_0() -> None:
    cut = topology(
        "{name: c, role: chief, replicas: 1}",
        "{name: w, role: worker, replicas: 4}",
        strategy="{kind: downpour, worker_groups: 2}",
    )
    names = [[replica.name for replica in group] for group in worker_groups(cut, replicas_of(cut))]
    assert names == [["chief-0", "worker-0", "worker-1"], ["worker-2", "worker-3"]]


@pytest.mark.parametrize(
    ("pools", "program", "ends_with"),
    [
        (("{name: w, role: worker, replicas: 1}",), "{script: a.py}", EndsWith.TRAINERS),
        (
            ("{name: w, role: worker, replicas: 1}", "{name: p, role: ps, replicas: 1}"),
            "{script: a.py}",
            EndsWith.TRAINERS,
        ),
        (
            ("{name: w, role: worker, replicas: 1}", "{name: p, role: ps, replicas: 1}"),
            "{launcher: command, command: [a]}",
            EndsWith.CHIEF,
        ),
        (
            ("{name: w, role: worker, replicas: 1}", "{name: p, role: ps, replicas: 1}"),
            "{launcher: command, command: [a], ends_with: all}",
            EndsWith.ALL,
        ),
    ],
)
def test_a_run_ends_with_the_trainers_but_with_the_chief_where_tensorflow_serves_for_ever(
    pools: tuple[str, ...], program: str, ends_with: EndsWith
) -> None:
    assert topology(*pools, program=program).ends_with is ends_with
