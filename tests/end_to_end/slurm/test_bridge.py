"""Tests of a run whose job gets no further steps: it is reached by SSH to its node, else read from its files alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import COMMAND, WAITS
from tests.lab.slurm import CONF, SlurmCluster

pytestmark = pytest.mark.lab

NO_STEPS = """#!/bin/sh
case "$*" in *--overlap*) echo 'srun: error: Unable to create step' >&2; exit 1;; esac
exec /usr/bin/srun "$@"
"""
"""An srun that creates no steps beside that of the keepers. Jobs inherit the PATH of the session that submits them."""


@pytest.fixture
def no_steps(cluster: SlurmCluster) -> Iterator[Path]:
    """Makes steps fail that are created on the login node, and lets SSH to the nodes work. Yields the SSH folder."""
    login = cluster.controller
    programs, ssh = login.home / "no-steps", login.home / ".ssh"
    programs.mkdir()
    ssh.mkdir(mode=0o700, exist_ok=True)
    (programs / "srun").write_text(NO_STEPS)
    (programs / "srun").chmod(0o755)
    shutil.copy(cluster.lab.identity_file, ssh / "id_ed25519")
    (ssh / "id_ed25519").chmod(0o600)
    (ssh / "known_hosts").write_text(cluster.lab.known_hosts)
    hosts = [f"Host {name}\n  HostName {cluster.lab[name].address}\n" for name in cluster.names]
    (ssh / "config").write_text("".join(hosts))
    (ssh / "config").chmod(0o600)
    # The two minutes in which only steps are tried are over.
    changed = {"PATH": "/root/no-steps:/usr/sbin:/usr/bin:/sbin:/bin", "TORCHYARD_BRIDGE_STEP_ONLY_S": "0"}
    login.set_ssh_environment({"SLURM_CONF": CONF, **changed})
    yield ssh
    login.set_ssh_environment({"SLURM_CONF": CONF})
    shutil.rmtree(programs)
    for name in ("id_ed25519", "known_hosts", "config"):
        (ssh / name).unlink(missing_ok=True)


def test_a_run_without_steps_is_reached_by_ssh_and_else_read_from_its_files(
    on_cluster: DesktopFactory, cluster: SlurmCluster, no_steps: Path
) -> None:
    desktop = on_cluster()
    run_id = desktop.run(desktop.write(WAITS, replicas=1, program=COMMAND))
    shown = desktop.wait_for(run_id, "running")
    assert shown["telemetry_problem"] == ""
    log = cluster.controller.home / ".torchyard" / "hosts" / "hpc.1" / "session.log"
    assert f"SSH to the node of {run_id}: works" in log.read_text()

    (no_steps / "id_ed25519").unlink()
    problem = desktop.shown(run_id)["telemetry_problem"]
    assert "neither by a step of the job (srun: error: Unable to create step) nor by SSH (" in problem
    assert "Permission denied" in problem
    printed = desktop.torchyard("runs", "show", run_id).stdout
    assert f"live telemetry is missing: {problem}" in printed
    assert "running" in printed

    stopped = desktop.torchyard("runs", "stop", run_id)
    assert stopped.returncode == 0, stopped.stderr
    ended = desktop.wait_for(run_id, "stopped")
    assert "stopped by " in ended["reason"]
    assert ended["telemetry_problem"] == ""
