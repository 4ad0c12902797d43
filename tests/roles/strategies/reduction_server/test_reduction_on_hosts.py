"""Tests of the exchange with reducers on lab hosts: how much data is sent, and a host that disappears silently."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.lab.hosts.host import LabHost
from tests.lab_fixtures import LabFactory

pytestmark = [pytest.mark.lab, pytest.mark.train]

ROOT = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("reduces_on_host.py")
DEADLINE_S = 60
BUSY_S = 5.0
"""Additional seconds that a busy machine may need."""


def start(
    fork_server: ForkServer, host: LabHost, role: str, number: int, workers: list[str], reducers: list[str], size: int
) -> subprocess.Popen[str]:
    plan = {"role": role, "number": number, "workers": workers, "reducers": reducers, "bytes": size}
    environment = {"PYTHONPATH": str(ROOT / "agent"), "OMP_NUM_THREADS": "1"}
    return host.start([host.fork_scripts_from(fork_server), str(PROGRAM), json.dumps(plan)], env=environment)


def order(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    """Returns the next line of the program's output that is not a log message."""
    assert process.stdout is not None
    return next(line.strip() for line in process.stdout if not line.startswith("torchyard:"))


def test_a_worker_sends_and_receives_its_gradients_once_a_step_and_a_host_that_is_gone_is_named_within_10_s(
    lab: LabFactory, torch_imported: ForkServer
) -> None:
    size, steps = 20_000_000, 3
    hosts = lab(hosts=["worker-0", "worker-1", "reducer-0", "reducer-1"]).hosts
    workers, reducers = [host.address for host in hosts[:2]], [host.address for host in hosts[2:]]
    for host in hosts:
        host.shape("200mbit")
    serving = [start(torch_imported, host, "reducer", n, workers, reducers, size) for n, host in enumerate(hosts[2:])]
    training = [start(torch_imported, host, "worker", n, workers, reducers, size) for n, host in enumerate(hosts[:2])]
    try:
        assert [answer(process) for process in training] == ["ready", "ready"]
        before = [(host.bytes_sent, host.bytes_received) for host in hosts[:2]]
        for process in training:
            order(process, f"steps {steps}")
        assert [answer(process) for process in training] == ["summed", "summed"]
        for host, (sent, received) in zip(hosts[:2], before, strict=True):
            # Bytes are counted before they are split into packets, so there are few headers.
            assert (host.bytes_sent - sent) / steps == pytest.approx(size, rel=0.02)
            assert (host.bytes_received - received) / steps == pytest.approx(size, rel=0.02)

        hosts[3].cut_cable()
        cut = time.monotonic()
        order(training[0], "steps 1")  # One worker has a lot of data to send, while the other is idle.
        for process in training:
            assert answer(process) == "lost: reducer-1"
            assert time.monotonic() - cut < 10 + BUSY_S
    finally:
        for process in (*training, *serving):
            process.communicate(timeout=DEADLINE_S)  # The program exits when its stdin is closed.
