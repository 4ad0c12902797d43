"""Tests of the launch lease: hosts release the GPUs that they hold for a launch if the desktop is silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import Team, daemon_of, is_alive, run_folders
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_agent.protocol.paths import gpu_socket
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.launch import lease_renewal

pytestmark = pytest.mark.lab

NUL = "\0"
LEASE_S = 6.0
RENEW_EVERY_S = 0.5
FREE_WITHIN_S = 60.0
"""Deadline in seconds for the release of the GPUs on a busy machine.

Without a lease, the hosts would release the GPUs only when they detect the lost connection, which takes longer.
"""
STOPS_ITSELF = f"""
import os, signal
from torchyard_core.cli.entry_point import main
from torchyard_core.launch import launch, lease_renewal

def stop(*_):
    os.kill(os.getpid(), signal.SIGSTOP)
    return []

lease_renewal.RENEW_EVERY_S = {RENEW_EVERY_S}
launch.check_connectivity = stop
main()
"""
"""A `torchyard` command that suspends itself once all hosts are prepared, before it asks any host to start."""
POOLS = "[{name: workers, role: worker, replicas: 2, gpus: 1, placement: spread}]"
PROGRAM = "launcher: command\ncommand: [python3, script.py]"


@pytest.fixture
def gpus(gpu_lab: Lab, make_desktop: Callable[..., Desktop], tmp_path: Path) -> Iterator[Team]:
    """Yields a team with two hosts with GPUs, whose keepers use short leases."""
    team = Team(gpu_lab, make_desktop(gpu_lab, python=None), tmp_path)
    team.impatient(launch_lease_s=LEASE_S)
    yield team
    for host in gpu_lab.hosts:
        host.mend_cable()
    try:
        team.nothing_is_left()
    finally:
        team.close()


def held(lab: Lab) -> list[str]:
    """Returns the GPUs that keepers have locked."""
    gpus = [f"GPU-{host.name}-{number}" for host in lab.hosts for number in range(2)]
    sockets = "".join(host.exec(["cat", "/proc/net/unix"], check=True).stdout for host in lab.hosts)
    return [gpu for gpu in gpus if f"@{gpu_socket(gpu).lstrip(NUL)}\n" in sockets]


def is_suspended(process: subprocess.Popen[str]) -> bool:
    if process.poll() is not None:
        raise AssertionError(process.communicate())
    return "\nState:\tT" in Path(f"/proc/{process.pid}/status").read_text()


@pytest.mark.parametrize("how", ["stopped", "cut off", "killed with the daemons"])
def test_gpus_of_a_launch_that_is_not_renewed_are_free_after_its_lease(gpus: Team, how: str) -> None:
    file = gpus.topology("print('done')", PROGRAM, POOLS)
    launching = subprocess.Popen(
        [sys.executable, "-c", STOPS_ITSELF, "--home", str(gpus.desktop.home), "run", str(file), "--book", "1h"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=gpus.desktop.environment(),
        start_new_session=True,
    )
    try:
        wait_until(lambda: is_suspended(launching))
        assert len(held(gpus.lab)) == 2
        before = time.monotonic()
        if how == "cut off":
            for host in gpus.lab.hosts:
                host.cut_cable()
            launching.kill()
        elif how == "killed with the daemons":
            daemons = [daemon_of(host) for host in gpus.lab.hosts]
            for pid in daemons:
                os.kill(pid, signal.SIGKILL)
            launching.kill()
            wait_until(lambda: not any(map(is_alive, daemons)))

        wait_until(lambda: not held(gpus.lab), FREE_WITHIN_S)
        assert time.monotonic() - before < FREE_WITHIN_S
        wait_until(lambda: not run_folders(gpus.lab))
        if how == "stopped":
            launching.send_signal(signal.SIGCONT)
            _, said = launching.communicate(timeout=60)
            assert launching.returncode not in (0, None)
            assert " gave up the launch of run " in said
            assert "Traceback" not in said
    finally:
        launching.kill()
        launching.communicate()


def test_a_host_that_is_slow_to_be_prepared_does_not_lose_the_others(
    gpus: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, late = DaemonClient.call, gpus.lab.hosts[1].name

    def calling(link: DaemonClient, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        if method == "run.prepare" and link.host == late:
            time.sleep(2 * LEASE_S)  # Preparing the launch takes longer than the lease, so the desktop must renew it.
        return call(link, method, params, timeout_s)

    monkeypatch.setattr(lease_renewal, "RENEW_EVERY_S", RENEW_EVERY_S)
    monkeypatch.setattr(DaemonClient, "call", calling)
    run = gpus.launch(gpus.topology("print('done')", PROGRAM, POOLS))
    assert run.ended()["state"] == "succeeded"
