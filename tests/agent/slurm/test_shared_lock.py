"""Tests of the lock file that processes on several nodes share."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.waiting import wait_until
from torchyard_agent.slurm.shared_lock import SharedLock

HOLDS = """
import sys, time
from torchyard_agent.slurm.shared_lock import SharedLock

with SharedLock(sys.argv[1]):
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)])
    wait_until(lambda: path.exists() and path.read_text())
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with SharedLock(str(path), stale_s=0.2):
        assert str(holder.pid) not in path.read_text().split()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_live_process_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    entered = threading.Event()

    def enter() -> None:
        with SharedLock(path):
            entered.set()

    waiting = threading.Thread(target=enter)
    with SharedLock(path):
        waiting.start()
        assert not entered.wait(0.5)
    waiting.join(30)
    assert entered.is_set()
    assert list(tmp_path.iterdir()) == []
