"""Tests of a run's request to Slurm: its job components, their options, the numbering of slots, and the job script."""

from __future__ import annotations

import pytest

from tests.core.engines.slurm.samples import CLUSTER, SHAPES, planned
from torchyard_core.engines.slurm.batch_script import in_reservation, job_script, limit_seconds
from torchyard_core.engines.slurm.planned_nodes import (
    components_of,
    have_room,
    slots_of,
)
from torchyard_core.engines.slurm.worker_group_jobs import renumbered


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


def test_the_script_names_the_run_and_passes_the_environment() -> None:
    found = planned([{"name": "workers", "role": "worker", "replicas": 1}])
    script = job_script("20260101-000000-aaaa", found.topology, CLUSTER, components_of(found), delay_s=59.2)
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


def test_booked_nodes_have_room_if_each_slot_has_a_node_of_its_own() -> None:
    shapes = [{**SHAPES[0], "names": ["g1", "g2"]}, {**SHAPES[1], "names": ["c1"]}]
    pools = [
        {"name": "servers", "role": "ps", "replicas": 1, "cpus": 4},
        {"name": "workers", "role": "worker", "replicas": 1, "gpus": 4},
    ]
    components = components_of(planned(pools, strategy={"kind": "downpour", "worker_groups": 1}))
    assert have_room(shapes, {"g1", "c1"}, components)
    assert have_room(shapes, {"g1", "g2"}, components)
    assert not have_room(shapes, {"g1"}, components)
    assert not have_room(shapes, {"c1", "elsewhere"}, components)
