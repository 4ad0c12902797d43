"""Tests of the Slurm cluster that other tests use: real daemons, GPUs, users, and the loss of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import slurm
from tests.lab.needs import LabUnavailable
from tests.lab.slurm import SlurmCluster
from tests.lab_fixtures import ClusterFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.lab


def test_jobs_run_on_nodes_with_their_gpus_and_as_their_user(make_cluster: ClusterFactory) -> None:
    cluster = make_cluster(nodes=2, users=("lee",))
    done = cluster.run("srun", "-N2", "--gres=gpu:2", "sh", "-c", "echo $(hostname) $(id -un) $CUDA_VISIBLE_DEVICES")
    assert sorted(done.stdout.splitlines()) == ["n1 root 0,1", "n2 root 0,1"], done.stderr + cluster.log()
    (cluster.controller.home_of("lee") / "file").write_text("shared")
    shared = cluster.run("srun", "-w", "n2", "sh", "-c", "echo $(id -un) $(cat ~/file)", user="lee")
    assert shared.stdout == "lee shared\n", shared.stderr


def test_a_destroyed_node_ends_its_job_and_comes_back(make_cluster: ClusterFactory) -> None:
    cluster = make_cluster(nodes=2)
    cluster.run("sbatch", "--no-requeue", "-w", "n2", "-o", "/dev/null", "--wrap", "sleep 1000")
    wait_until(lambda: "RUNNING" in cluster.jobs().values())
    cluster.destroy("n2")
    cluster.reboot("n2")
    wait_until(lambda: not cluster.jobs(), what=cluster.log)
    assert cluster.run("srun", "-w", "n2", "hostname").stdout == "n2\n"


@pytest.mark.proof  # MariaDB takes ten seconds to start.
def test_a_database_records_the_jobs(make_cluster: ClusterFactory) -> None:
    cluster = make_cluster(nodes=1, database=True)
    cluster.run("srun", "--account=nlp", "true")
    # `job_queue.accounted_state` runs this command.
    command = ("sacct", "-n", "-X", "-D", "-P", "-j", "1", "-o", "State")
    wait_until(lambda: cluster.run(*command).stdout.split() == ["COMPLETED"], what=cluster.log)


def test_a_machine_without_slurm_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SEARCH_PATH", "/nowhere")
    with pytest.raises(LabUnavailable, match="slurmctld"):
        SlurmCluster(tmp_path).__enter__()
