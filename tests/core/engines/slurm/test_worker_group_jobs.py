"""Tests of the jobs of worker groups."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.engines.slurm.samples import CLUSTER, planned
from torchyard_core.engines.slurm.batch_script import job_script
from torchyard_core.engines.slurm.worker_group_jobs import jobs_of, renumbered, separated


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
