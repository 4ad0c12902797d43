"""Tests that no process of a run stays on its node, for both ways in which Slurm tracks the processes of a job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.slurm.jobs import COMMAND, WAITS, ClusterDesktop
from tests.lab_fixtures import ClusterFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

MARK = f"detached-{os.getpid()}"
DETACHES = f"""
import subprocess
subprocess.Popen(["sh", "-c", "sleep 1000; exit # {MARK}"], start_new_session=True)
{WAITS}"""
"""A program that waits, and has started a process with a session of its own."""


def is_left() -> bool:
    """Returns whether the detached process exists on any node."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"# {MARK}".encode() in (process / "cmdline").read_bytes():
                return True
        except OSError:
            continue  # The process has ended.
    return False


@pytest.mark.parametrize("tracking", ["cgroup", "linuxproc"])
def test_a_stopped_run_leaves_no_process_on_its_node(
    tracking: str, make_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = make_cluster(nodes=1, settings={"ProctrackType": f"proctrack/{tracking}"})
    desktop = ClusterDesktop(tmp_path / "desktop", cluster)
    file = desktop.write(DETACHES, replicas=1, program=COMMAND)
    run_id = desktop.run(file)
    wait_until(is_left, what=lambda: desktop.job_log(run_id))
    assert desktop.torchyard("runs", "stop", run_id).returncode == 0
    wait_until(lambda: not is_left(), what=cluster.log)
    cluster.wait_until_idle()
    if tracking == "cgroup":  # With linuxproc, processes that outlive a killed keeper stay, of which a check warns.
        run_id = desktop.run(file)
        wait_until(is_left, what=lambda: desktop.job_log(run_id))
        cluster.run("scancel", "--signal=KILL", "--full", *cluster.jobs())
        wait_until(lambda: not is_left(), what=cluster.log)
        cluster.wait_until_idle()
    desktop.close()
