"""Tests of detecting whether a process computes, from its CPU time and that of its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import wait_until
from torchyard_agent.enforcement.process_activity import Activity

SLEEPS = "import time; print(flush=True); time.sleep(600)"
SPINS = "print(flush=True)\nwhile True: pass"
HAS_A_BUSY_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPINS!r}])"


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(program: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(("program", "sleeps"), [(SLEEPS, True), (SPINS, False), (HAS_A_BUSY_CHILD, False)])
def test_a_process_without_cpu_time_is_idle(
    program: str, sleeps: bool, start: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    pid = start(program).pid
    activity = Activity(0.0)
    assert activity.asleep([pid], time.monotonic()) == set()
    time.sleep(1.1)  # A process is measured again only after one second.
    wait_until(lambda: (activity.asleep([pid], time.monotonic()) == {pid}) == sleeps)


def test_early_samples_get_the_last_measurement(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    pid = start(SLEEPS).pid
    activity = Activity(60.0)
    assert activity.asleep([pid], 1000.0) == set()
    assert activity.asleep([pid], 1030.0) == set()
    assert activity.asleep([pid], 1060.0) == {pid}
    assert activity.asleep([pid], 1061.0) == {pid}


def test_a_hidden_process_is_not_idle() -> None:
    activity = Activity(0.0)
    for now in (1.0, 2.0, 3.0):
        assert activity.asleep([2**22 + 1], now) == set()
