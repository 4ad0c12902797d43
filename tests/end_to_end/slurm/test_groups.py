"""Test of an asynchronous run on a Slurm cluster, whose worker groups have jobs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import PROGRAMS, ClusterDesktop
from tests.fork_server import ForkServer
from tests.lab.slurm import SlurmCluster
from tests.lab_fixtures import cluster_factories
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]


@pytest.fixture(scope="module")
def _module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster with a spare node, on which a group that has lost its node can continue."""
    for make in cluster_factories(tmp_path_factory.mktemp("slurm")):
        yield make(nodes=4)


def pools(workers: int, **resources: int) -> list[dict[str, Any]]:
    """Returns the pools of one server and of workers, each of which is a group with a job of its own."""
    return [
        {"name": "servers", "role": "ps", "replicas": 1, **resources},
        {
            "name": "workers",
            "role": "worker",
            "replicas": workers,
            "min_replicas": 1,
            "placement": "spread",
            **resources,
        },
    ]


class GroupRun:
    """A run of downpour whose worker groups have jobs of their own."""

    def __init__(self, desktop: ClusterDesktop, of: list[dict[str, Any]]):
        self.desktop = desktop
        self.cluster: SlurmCluster = desktop.cluster
        self._folder = self.cluster.controller.home / "steps"
        self._folder.mkdir(exist_ok=True)
        for file in self._folder.glob("losses.*"):
            file.unlink()
        program = PROGRAMS / "resuming" / "resumable.py"
        arguments = ("/root/steps", "10000", "0.1")
        self.topology = desktop.write(program, *arguments, pools=of, strategy={"kind": "downpour"})
        self.run_id = desktop.run(self.topology)
        self.wait(lambda: len(self.desktop.shown(self.run_id)["jobs"]) == of[-1]["replicas"])
        self.jobs = [str(one["job_id"]) for one in self.desktop.shown(self.run_id)["jobs"]]

    def log(self) -> str:
        journal = self.desktop.journal(self.run_id)[-20:]
        return f"{self.desktop.job_log(self.run_id)}\n{journal}\n{self.cluster.log()}"

    def wait(self, condition: Callable[[], Any]) -> None:
        wait_until(condition, 90.0, what=self.log)

    def _steps(self, group: int) -> int:
        file = self._folder / f"losses.{group}"
        return file.read_text().count("\n") if file.exists() else 0

    def assert_trains(self, *groups: int) -> None:
        """Waits until each of these groups takes more steps."""
        before = {group: self._steps(group) for group in groups}
        self.wait(lambda: all(self._steps(group) >= before[group] + 5 for group in groups))

    def node(self, group: int) -> str:
        """Returns the node of a group's job."""
        return self.cluster.run("squeue", "-h", "-j", self.jobs[group], "-o", "%N").stdout.strip()

    def state(self, name: str) -> str:
        replicas = self.desktop.shown(self.run_id)["replicas"]
        return next(str(one["state"]) for one in replicas if one["name"] == name)

    def wait_for_loss(self, name: str) -> None:
        self.wait(lambda: self.state(name) == "lost")

    def wait_for_return(self, group: int) -> None:
        """Waits until a group trains again whose job is requeued, and starts it at once as a connected desktop does."""

        def has_returned() -> bool:
            self.cluster.run("scontrol", "update", f"jobid={self.jobs[group]}", "starttime=now")
            return self.state(f"worker-{group}") == "running"

        self.wait(has_returned)
        self.assert_trains(group)

    def stop(self) -> None:
        shown = self.desktop.shown(self.run_id)
        assert shown["state"] == "running"
        assert shown["interruptions"] == []
        assert self.desktop.torchyard("runs", "stop", self.run_id).returncode == 0
        self.desktop.wait_for(self.run_id, "stopped")
        self.wait(lambda: not self.cluster.jobs())


@pytest.mark.timeout(300)
def test_downpour_goes_on_when_the_job_of_one_group_is_cancelled_and_that_of_another_is_requeued(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    run = GroupRun(desktop, pools(3))
    exported = desktop.torchyard("export", "slurm", run.topology, "--on", "hpc")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.count("#!/bin/sh\n") == 3
    run.assert_trains(0, 1, 2)
    assert [one["group"] for one in desktop.shown(run.run_id)["jobs"]] == ["", "group-1", "group-2"]
    for job, script in zip(run.jobs[1:], ("group-1.sh", "group-2.sh"), strict=True):
        text = (desktop.run_dir(run.run_id) / "job" / script).read_text().replace(run.run_id, "RUN-ID")
        assert all(line in exported.stdout for line in text.splitlines() if line.startswith("#SBATCH --job-name"))
        assert cluster.jobs()[job] == "RUNNING"
    cluster.run("scancel", run.jobs[1])
    run.wait_for_loss("worker-1")
    run.assert_trains(0, 2)
    cluster.run("scontrol", "requeue", run.jobs[2])
    run.wait_for_loss("worker-2")
    run.assert_trains(0)
    run.wait_for_return(2)
    run.assert_trains(0)
    assert run.jobs[1] not in cluster.jobs()
    run.stop()


@pytest.mark.timeout(300)
def test_downpour_goes_on_when_a_group_loses_its_node_and_gets_another_one(
    on_cluster: DesktopFactory, cluster: SlurmCluster, torch_for_hosts: ForkServer
) -> None:
    run = GroupRun(on_cluster(), pools(2, cpus=8))
    run.assert_trains(0, 1)
    lost = run.node(1)
    cluster.destroy(lost)
    run.wait_for_loss("worker-1")
    run.assert_trains(0)
    run.wait_for_return(1)
    assert run.node(1) != lost
    # The node boots only now: Slurm's late message that ends the lost start of the job would also end a new one there.
    cluster.reboot(lost, lambda host: host.fork_scripts_from(torch_for_hosts))
    run.stop()


@pytest.mark.proof  # Slurm counts time limits in minutes.
@pytest.mark.timeout(300)
def test_downpour_goes_on_when_a_group_reaches_its_time_limit(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    run = GroupRun(on_cluster(), pools(2, cpus=8))
    run.assert_trains(0, 1)
    cluster.run("scontrol", "update", f"jobid={run.jobs[1]}", "timelimit=00:01:00")
    run.wait_for_loss("worker-1")
    run.assert_trains(0)
    cluster.run("scontrol", "update", f"jobid={run.jobs[1]}", "timelimit=1-00:00:00")
    run.wait_for_return(1)
    run.stop()
