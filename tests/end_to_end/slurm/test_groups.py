"""Test of an asynchronous run on a Slurm cluster, whose worker groups have jobs of their own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import PROGRAMS
from tests.lab.slurm import SlurmCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]

POOLS: list[dict[str, Any]] = [
    {"name": "servers", "role": "ps", "replicas": 1},
    {"name": "workers", "role": "worker", "replicas": 3, "min_replicas": 1, "placement": "spread"},
]


@pytest.mark.timeout(300)
def test_downpour_goes_on_when_the_job_of_one_group_is_cancelled_and_that_of_another_is_requeued(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    folder = cluster.controller.home / "steps"
    folder.mkdir(exist_ok=True)
    for file in folder.glob("losses.*"):
        file.unlink()
    program = PROGRAMS / "resuming" / "resumable.py"
    arguments = ("/root/steps", "10000", "0.1")
    topology = desktop.write(program, *arguments, pools=POOLS, strategy={"kind": "downpour"})
    exported = desktop.torchyard("export", "slurm", topology, "--on", "hpc")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.count("#!/bin/sh\n") == 3
    run_id = desktop.run(topology)

    def log() -> str:
        return f"{desktop.job_log(run_id)}\n{desktop.journal(run_id)[-20:]}\n{cluster.log()}"

    def steps(group: int) -> int:
        file = folder / f"losses.{group}"
        return file.read_text().count("\n") if file.exists() else 0

    def trains(*groups: int) -> bool:
        """Waits until each of these groups takes more steps."""
        before = {group: steps(group) for group in groups}
        return wait_until(lambda: all(steps(group) >= before[group] + 5 for group in groups), 90.0, what=log)

    def state(name: str) -> str:
        return next(str(one["state"]) for one in desktop.shown(run_id)["replicas"] if one["name"] == name)

    assert trains(0, 1, 2)
    first, *others = desktop.shown(run_id)["jobs"]
    assert [first["group"], *(one["group"] for one in others)] == ["", "group-1", "group-2"]
    for one, script in zip(others, ("group-1.sh", "group-2.sh"), strict=True):
        text = (desktop.run_dir(run_id) / "job" / script).read_text().replace(run_id, "RUN-ID")
        assert all(line in exported.stdout for line in text.splitlines() if line.startswith("#SBATCH --job-name"))
        assert cluster.jobs()[one["job_id"]] == "RUNNING"
    cluster.run("scancel", others[0]["job_id"])
    wait_until(lambda: state("worker-1") == "lost", 90.0, what=log)
    assert trains(0, 2)
    cluster.run("scontrol", "requeue", others[1]["job_id"])
    wait_until(lambda: state("worker-2") == "lost", 90.0, what=log)
    assert trains(0)

    def has_returned() -> bool:
        cluster.run("scontrol", "update", f"jobid={others[1]['job_id']}", "starttime=now")
        return state("worker-2") == "running"

    wait_until(has_returned, 90.0, what=log)
    assert trains(0, 2)
    assert others[0]["job_id"] not in cluster.jobs()
    shown = desktop.shown(run_id)
    assert shown["state"] == "running"
    assert shown["interruptions"] == []
    assert desktop.torchyard("runs", "stop", run_id).returncode == 0
    desktop.wait_for(run_id, "stopped")
    wait_until(lambda: not cluster.jobs(), what=log)
