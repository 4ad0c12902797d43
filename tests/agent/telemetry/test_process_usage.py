"""Tests of measuring process trees, with real children, threads and zombies."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent.telemetry.sample_programs import program
from tests.waiting import wait_until
from torchyard_agent.telemetry import process_usage
from torchyard_agent.telemetry.process_owners import UNKNOWN, Owners, user_name
from torchyard_agent.telemetry.process_tree import descendants
from torchyard_agent.telemetry.process_usage import ProcessTrees

FAMILY = """
import os, sys, threading, time
def generation(depth):
    if depth and os.fork() == 0:
        generation(depth - 1)
    elif depth:
        return
    else:
        print("ready", flush=True)
    time.sleep(600)
generation(2)
time.sleep(600)
"""
BY_A_THREAD = """
import subprocess, threading, time
started = threading.Event()
def work():
    child = subprocess.Popen(["sleep", "600"])
    started.set()
    child.wait()
threading.Thread(target=work, daemon=True).start()
started.wait()
print("ready", flush=True)
time.sleep(600)
"""
BUSY = """
import time
block = bytearray(64 << 20)
print("ready", flush=True)
while True: pass
"""
ON_COMMAND = """
import subprocess, sys
print("ready", flush=True)
children = []
for line in sys.stdin:
    if line == "start\\n":
        children.append(subprocess.Popen(["sleep", "600"]))
    else:
        children[-1].kill()  # and leaves it a zombie
    print("done", flush=True)
"""


TOLERANCE = 0.06
"""Tolerance, as a fraction of one CPU, for clock ticks and rounding."""


def used_s(pid: int) -> float:
    """Returns the CPU time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files_of(pids: Iterable[int]) -> int:
    """Returns how many of this process's open files are in the /proc folders of the given processes."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        # The listing includes the descriptor that was used to list the folder and that is already closed.
        with suppress(FileNotFoundError):
            found.add(entry.readlink())
    return sum(Path(f"/proc/{pid}") in file.parents for pid in pids for file in found)


def test_a_tree_is_the_root_with_children_and_grandchildren() -> None:
    with program(FAMILY) as root:
        found = descendants([root.pid])
        assert found[0] == root.pid
        assert len(found) == 3


def test_children_of_a_thread_belong_to_the_tree() -> None:
    with program(BY_A_THREAD) as root:
        assert len(descendants([root.pid])) == 2
        assert ProcessTrees().sample({"worker-0": [root.pid]}, 1.0)["worker-0"]["processes"] == 2


@pytest.mark.parametrize("children_files", [True, False])
def test_both_ways_of_finding_children_agree(children_files: bool) -> None:
    with program(FAMILY) as root:
        trees = ProcessTrees(children_files=children_files)
        assert trees.sample({"worker-0": [root.pid]}, 1.0)["worker-0"]["processes"] == 3
        assert set(trees.replica_of().values()) == {"worker-0"}
        assert set(trees.replica_of()) == set(descendants([root.pid]))


def test_a_table_of_children_gives_a_tree_without_duplicates() -> None:
    assert descendants([1, 2], table={1: [2, 3], 3: [4], 9: [10]}) == [1, 2, 3, 4]


def test_a_busy_process_uses_one_cpu_and_its_memory_is_counted() -> None:
    with program(BUSY) as busy:
        trees = ProcessTrees()
        began = time.monotonic(), used_s(busy.pid)
        first = trees.sample({"worker-0": [busy.pid]}, time.monotonic())["worker-0"]
        assert first["cpu"] is None
        assert first["memory_mb"] >= 64
        after_the_first = time.monotonic(), used_s(busy.pid)
        wait_until(lambda: used_s(busy.pid) >= began[1] + 0.5)
        before_the_second = time.monotonic(), used_s(busy.pid)
        share = float(trees.sample({"worker-0": [busy.pid]}, time.monotonic())["worker-0"]["cpu"])
        ended = time.monotonic(), used_s(busy.pid)
        # This process may sleep between two measurements, so the lower bound relates CPU time to wall time.
        least = (before_the_second[1] - after_the_first[1]) / (ended[0] - began[0])
        most = (ended[1] - began[1]) / (before_the_second[0] - after_the_first[0])
        assert least - TOLERANCE <= share / 100 <= most + TOLERANCE


def test_a_new_child_is_found_and_a_zombie_no_longer_counts() -> None:
    with program(ON_COMMAND) as root:
        assert root.stdin is not None
        assert root.stdout is not None
        trees = ProcessTrees()
        replicas = {"worker-0": [root.pid]}
        assert trees.sample(replicas, 1.0)["worker-0"]["processes"] == 1
        root.stdin.write("start\n")
        root.stdin.flush()
        root.stdout.readline()
        assert trees.sample(replicas, 5.0)["worker-0"]["processes"] == 2
        root.stdin.write("kill\n")
        root.stdin.flush()
        root.stdout.readline()
        now = iter(range(10, 10_000))
        wait_until(lambda: trees.sample(replicas, float(next(now)))["worker-0"]["processes"] == 1)


def test_an_ended_replica_is_empty_and_an_unrequested_one_is_forgotten() -> None:
    child = subprocess.Popen(["sleep", "600"])
    trees = ProcessTrees()
    assert trees.sample({"worker-0": [child.pid]}, 1.0)["worker-0"]["processes"] == 1
    child.kill()
    child.wait()
    assert trees.sample({"worker-0": [child.pid]}, 2.0)["worker-0"] == {"cpu": 0.0, "memory_mb": 0, "processes": 0}
    assert trees.sample({}, 3.0) == {}
    assert trees.replica_of() == {}


def test_files_of_unrequested_processes_are_closed() -> None:
    trees = ProcessTrees()
    with program(FAMILY) as root:
        pids = descendants([root.pid])
        trees.sample({"worker-0": [root.pid]}, 1.0)
        assert open_files_of(pids) == 3
        trees.sample({}, 2.0)
        assert open_files_of(pids) == 0


def test_more_processes_than_files_may_be_open_are_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_usage, "MAX_OPEN_FILES", 0)
    with program(FAMILY) as root:
        usage = ProcessTrees().sample({"worker-0": [root.pid]}, 1.0)["worker-0"]
    assert usage["processes"] == 3
    assert usage["memory_mb"] > 0


def test_a_process_has_an_owner_and_a_name() -> None:
    assert Owners().of(os.getpid(), 0.0)[0] == getpass.getuser() == user_name(os.getuid())
    child = subprocess.Popen(["sleep", "600"])
    try:
        wait_until(lambda: Owners().of(child.pid, 0.0) == (getpass.getuser(), "sleep"))
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_the_owner_is_the_user_of_the_process_not_of_the_caller() -> None:
    child = subprocess.Popen(["sleep", "600"], user=65534)
    try:
        wait_until(lambda: Owners().of(child.pid, 0.0)[1] == "sleep")
        assert Owners().of(child.pid, 0.0)[0] == user_name(65534) == "nobody"
    finally:
        child.kill()
        child.wait()


def test_a_pid_that_cannot_be_seen_is_unknown() -> None:
    beyond = 2**22 + 1  # The maximum PID on Linux is 2**22.
    assert Owners().of(beyond, 0.0)[0] == UNKNOWN


def test_a_uid_without_a_name_is_shown_as_a_number() -> None:
    assert user_name(3_999_999_999) == "3999999999"
