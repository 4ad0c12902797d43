"""Tests of the request for a sweep on a cluster: an array, or single heterogeneous jobs, and the plan of a trial."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.core.engines.slurm.samples import ANSWER, CLUSTER, DESCRIPTION
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import NeverStarts
from torchyard_core.engines.slurm.sweep_launch import SlurmSweepLaunch
from torchyard_core.engines.slurm.worker_group_jobs import renumbered
from torchyard_core.errors import RunFailed
from torchyard_core.fleet.cluster import moved_to_cluster
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.sweeps.sweep_launch import EndedSweep, SweepRequest
from torchyard_core.sweeps.search_file import search_from_text
from torchyard_core.topology.file import topology_from_text

WORKERS = "{name: workers, role: worker, replicas: 2, gpus: 1, min_replicas: 1, placement: spread}"
SERVERS = ", {name: servers, role: ps, replicas: 1}"
TEXT = """
version: 1
name: digits
pools: [%s]
strategy: {kind: %s}
program: {script: train.py, args: ["--lr", "{params.lr}"], env: {A: "1"}}
"""
SEARCH = """
version: 1
parameters: {lr: {distribution: uniform, low: 0, high: 1}}
objective: {metric: loss, goal: minimize}
trials: %d
parallel: 3
"""


def launch_of(
    pools: str = WORKERS, trials: int = 8, kind: str = "all_reduce", ended: EndedSweep | None = None
) -> tuple[SlurmSweepLaunch, list[Check]]:
    """Returns the launch of a sweep, and the list of its checks."""
    source = topology_from_text(TEXT % (pools, kind))
    search = search_from_text(SEARCH % trials).search
    assert source.topology is not None
    assert search is not None
    checks: list[Check] = []
    hosts: Any = ClusterHosts(CLUSTER, None)  # type: ignore[arg-type]  # It is not connected.
    topology = moved_to_cluster(source.topology, CLUSTER.name)
    launch = SlurmSweepLaunch(
        *(source, topology, "digits", hosts, {}, lambda event: None, checks.append),
        cluster=hosts,
        description=DESCRIPTION,
        sweep=SweepRequest(search, ended),
    )
    return launch, checks


def submission(launch: SlurmSweepLaunch) -> dict[str, Any]:
    planned = launch._plan_on(DESCRIPTION)
    jobs = launch._jobs_of(planned)
    return launch._submission(renumbered(planned, CLUSTER, jobs), jobs, "root")


def test_a_sweep_is_an_array_with_an_element_for_each_trial() -> None:
    launch, _ = launch_of()
    lines = launch.script().splitlines()
    assert "#SBATCH --array=1-8%3" in lines
    assert "#SBATCH --output=JOB-FOLDER/element-%a.log" in lines
    assert "#SBATCH --nodes=2" in lines
    assert lines[-1].endswith('slurm-trial JOB-FOLDER "${SLURM_ARRAY_TASK_ID:-$1}"')
    (job,) = launch._jobs_of(launch._plan_on(DESCRIPTION))
    check = launch._request_check(job)
    assert check.message.endswith("for each of 8 trials, 3 side by side, as an array of jobs")
    assert launch._submitted_text({"jobs": ["24"]}) == "array 24 submitted"


def test_a_topology_that_fits_no_node_is_refused_with_and_without_its_line() -> None:
    launch, _ = launch_of(WORKERS.replace("gpus: 1", "gpus: 64"))
    with pytest.raises(NeverStarts) as raised:
        launch.script()
    problem = raised.value.topology_problem
    assert problem.startswith("worker-0 and worker-1 each need 64 GPUs")
    assert raised.value.message.endswith(f": error no-room {problem}")


def test_only_the_trials_that_are_left_of_an_ended_sweep_are_submitted() -> None:
    launch, _ = launch_of(ended=EndedSweep("old", "study", 6, None))
    assert "#SBATCH --array=1-2%2" in launch.script().splitlines()
    assert submission(launch)["job"]["sweep"]["study"] == "study"


def test_the_plan_of_a_trial_has_a_token_in_place_of_its_run() -> None:
    launch, checks = launch_of()
    sent = submission(launch)
    sweep, text = sent["job"]["sweep"], json.dumps(sent["job"]["start"])
    assert (sweep["jobs"], sweep["parallel"], sweep["is_array"], sweep["env"]) == (8, 3, True, {"A": "1"})
    assert sweep["run_token"] in text
    assert sent["run_id"] not in text
    record = sent["job"]["prepare"]["hpc.1"]["record"]
    assert (record["sweep_run"], record["lineage"]) == (sent["run_id"], sweep["run_token"])
    assert [one["name"] for one in record["replicas"]] == ["worker-0", "worker-1"]
    assert "sweep" not in record
    own = sent["sweep_run"]["record"]
    assert own["replicas"] == [{"name": "coordinator-0", "host": "hpc.1", "gpus": []}]
    assert own["sweep"].startswith("version: 1")
    assert [check.name for check in checks] == ["optuna"]


def test_heterogeneous_trials_are_single_jobs_of_limited_number() -> None:
    launch, _ = launch_of(WORKERS + SERVERS, kind="downpour")
    assert "--array" not in launch.script()
    sent = submission(launch)
    assert not sent["job"]["sweep"]["is_array"]
    assert [len(one["slots"]) for one in sent["job"]["components"]] == [2, 1], "a trial is one job, with all groups"
    assert launch._submitted_text({"jobs": ["4", "5", "6"]}) == "jobs 4 to 6 submitted"
    many, _ = launch_of(WORKERS + SERVERS, trials=1001, kind="downpour")
    with pytest.raises(RunFailed, match="at most 1000 of them, not 1001"):
        many.script()


@pytest.mark.parametrize("ended", [None, EndedSweep("old", "study", 1, None)])
def test_an_array_larger_than_the_cluster_allows_is_refused_before_anything_is_sent(ended: EndedSweep | None) -> None:
    settings = {**ANSWER["settings"], "MaxArraySize": 1000}
    trials = 1000 if ended is None else 1001
    launch, _ = launch_of(trials=trials, ended=ended)
    launch.description = replace(DESCRIPTION, answer={**ANSWER, "settings": settings})
    with pytest.raises(NeverStarts, match=r"at most 999 trials \(MaxArraySize\), not 1000"):
        launch.script()
    allowed, _ = launch_of(trials=trials - 1, ended=ended)
    allowed.description = launch.description
    assert "#SBATCH --array=1-999%3" in allowed.script().splitlines()
