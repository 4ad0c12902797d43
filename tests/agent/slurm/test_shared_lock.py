"""Tests of the lock among processes: exclusion, and the lock of a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.agent.keeper.keeper_cluster import AGENT
from torchyard_agent.slurm.shared_lock import SharedLock

COUNTS = """
import sys
sys.path.insert(0, sys.argv[1])
from torchyard_agent.slurm.shared_lock import SharedLock
for _ in range(50):
    with SharedLock(sys.argv[2] + "/lock"):
        with open(sys.argv[2] + "/count") as file:
            count = int(file.read())
        with open(sys.argv[2] + "/count", "w") as file:
            file.write(str(count + 1))
"""


def test_no_two_processes_hold_the_lock(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-S", "-c", COUNTS, str(AGENT), str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "150"
    assert not (tmp_path / "lock").exists()


def test_the_lock_of_a_killed_process_is_taken_over_and_not_released_by_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    killed = SharedLock(str(file))
    killed.__enter__()
    with SharedLock(str(file), stale_s=0.05):
        held = file.read_text()
        killed.__exit__()
        assert file.read_text() == held
    assert not list(tmp_path.iterdir())
