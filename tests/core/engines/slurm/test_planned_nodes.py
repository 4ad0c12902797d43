"""Tests of a run's request to Slurm: its job components, their options, the numbering of slots, and the job script."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.core.engines.slurm.samples import CLUSTER, SHAPES
from torchyard_core.engines.slurm.planned_nodes import (
    components_of,
    jobs_of,
    on_slots,
    renumbered,
    separated,
    slots_of,
)
from torchyard_core.engines.slurm.script import in_reservation, job_script, limit_seconds
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.file import topology_from_text

PROGRAM = {"script": "train.py"}


def planned(pools: list[dict[str, Any]], **more: Any) -> Plan:
    pools = [{**pool, "hosts": ["hpc"]} for pool in pools]
    text = yaml.safe_dump({"version": 1, "name": "x", "pools": pools, "program": PROGRAM, **more})
    topology = topology_from_text(text).topology
    assert topology is not None
    slots = slots_of(CLUSTER, SHAPES, sum(pool.replicas for pool in topology.pools))
    found = plan(on_slots(topology, CLUSTER, slots), slots)
    assert found.can_start, found.problems
    return found


def test_equal_needs_are_one_component_with_the_most_demanding_node_s_resources() -> None:
    pools = [
        {"name": "chief", "role": "chief", "replicas": 1, "gpus": 2, "cpus": 8, "memory_gb": 16},
        {"name": "workers", "role": "worker", "replicas": 2, "gpus": 2, "cpus": 4, "placement": "spread"},
    ]
    (component,) = components_of(planned(pools))
    assert component.options == ["--nodes=3", "--cpus-per-task=8", "--mem=15259M", "--gpus-per-node=a100:2"]


def test_nodes_without_gpus_are_a_component_of_their_own_after_the_primary_s() -> None:
    pools = [
        {"name": "servers", "role": "ps", "replicas": 2, "cpus": 4, "placement": "spread"},
        {"name": "workers", "role": "worker", "replicas": 2, "gpus": 4},
    ]
    found = planned(pools, strategy={"kind": "downpour", "worker_groups": 2})
    first, second = components_of(found)
    assert first.gpus == (("a100", 4),)
    assert second.options == ["--nodes=2", "--cpus-per-task=4"]
    numbered = renumbered(found, CLUSTER)
    hosts = {replica.name: replica.host for replica in numbered.replicas}
    assert hosts == {"worker-0": "hpc.1", "worker-1": "hpc.2", "ps-0": "hpc.3", "ps-1": "hpc.4"}
    assert [gpu.uuid for gpu in numbered.replica("worker-1").gpus] == [f"@gpu:hpc.2:{index}@" for index in range(4)]
    script = job_script("20260101-000000-aaaa", found.topology, CLUSTER, [first, second])
    assert script.count("#SBATCH hetjob\n") == 1
    assert script.count("#SBATCH --partition=gpu\n") == 2


def test_worker_groups_that_may_be_missing_have_jobs_of_their_own_even_if_they_fit_on_one_node() -> None:
    pools = [
        {"name": "servers", "role": "ps", "replicas": 1, "cpus": 4},
        {"name": "workers", "role": "worker", "replicas": 3, "min_replicas": 1, "gpus": 1},
    ]
    found = separated(planned(pools, strategy={"kind": "downpour"}))
    first, *groups = jobs_of(found)
    assert [job.group for job in (first, *groups)] == ["", "group-1", "group-2"]
    assert [one.gpus for one in first.components] == [(("a100", 1),), ()]
    assert [[one.options[0] for one in job.components] for job in groups] == [["--nodes=1"]] * 2
    hosts = {replica.name: replica.host for replica in renumbered(found, CLUSTER).replicas}
    assert hosts == {"worker-0": "hpc.1", "worker-1": "hpc.3", "worker-2": "hpc.4", "ps-0": "hpc.2"}
    script = job_script("RUN", found.topology, CLUSTER, groups[0].components, 60, "group-1", is_only=False)
    assert "#SBATCH --job-name=torchyard-RUN-group-1\n" in script
    assert "/group-1.log\n" in script
    assert "--no-kill" not in script
    assert "--begin" not in script
    first_script = job_script("RUN", found.topology, CLUSTER, first.components, 60, is_only=False)
    assert "--no-kill" not in first_script, "another start of the job replaces a lost node"
    assert "#SBATCH --begin=now+60\n" in first_script


@pytest.mark.parametrize(
    ("kind", "changes", "groups"),
    [
        ("downpour", {}, 1),
        ("downpour", {"min_replicas": 2}, 1),
        ("diloco", {"min_replicas": 1}, 2),
        ("hogwild", {"min_replicas": 1}, 1),
        ("all_reduce", {"min_replicas": 1}, 1),
    ],
)
def test_groups_that_the_run_cannot_miss_are_in_the_first_job(kind: str, changes: dict[str, Any], groups: int) -> None:
    pools = [{"name": "workers", "role": "worker", "replicas": 2, "gpus": 1, **changes}]
    if kind == "downpour":
        pools.append({"name": "servers", "role": "ps", "replicas": 1})
    assert len(jobs_of(separated(planned(pools, strategy={"kind": kind})))) == groups


def test_the_script_names_the_run_and_passes_the_environment() -> None:
    found = planned([{"name": "workers", "role": "worker", "replicas": 1}])
    script = job_script("20260101-000000-aaaa", found.topology, CLUSTER, components_of(found), delay_s=60)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/sh"
    for option in (
        "--job-name=torchyard-20260101-000000-aaaa",
        "--time=04:00:00",
        "--export=ALL",
        "--signal=B:USR1@60",
        "--begin=now+60",
        "--nodes=1",
    ):
        assert f"#SBATCH {option}" in lines
    assert lines[-1] == "exec @submission@"
    assert not [line for line in lines if "no-kill" in line]


def test_a_run_that_may_lose_workers_keeps_its_job_without_a_lost_node() -> None:
    pool = {"name": "workers", "role": "worker", "replicas": 2, "min_replicas": 1, "placement": "spread"}
    found = planned([pool])
    assert "#SBATCH --no-kill\n" in job_script("x", found.topology, CLUSTER, components_of(found))


def test_nodes_that_are_down_are_no_slots() -> None:
    assert len(slots_of(CLUSTER, SHAPES, 20)) == 3 + 10


def test_each_component_of_a_job_runs_in_the_reservation_until_its_end() -> None:
    found = planned(
        [{"name": "workers", "role": "worker", "replicas": 1, "gpus": 1}, {"name": "ps", "role": "ps", "replicas": 1}]
    )
    script = job_script("20260101-000000-aaaa", found.topology, CLUSTER, components_of(found))
    assert script.count("--time=04:00:00") == 2
    reserved = in_reservation(script, "torchyard_b1", CLUSTER.time_limit, left_s=3600.0)
    assert reserved.count("#SBATCH --reservation=torchyard_b1\n") == 2
    assert reserved.count("#SBATCH --time=60\n") == 2
    assert "04:00:00" not in reserved
    assert "#SBATCH --time=240\n" in in_reservation(script, "torchyard_b1", CLUSTER.time_limit, left_s=86400.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("04:00:00", 14400), ("2-00", 172800), ("2-01:30", 178200), ("1-00:00:05", 86405)],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert limit_seconds(text) == seconds
