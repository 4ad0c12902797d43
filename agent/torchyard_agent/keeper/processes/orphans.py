"""Finds and ends the processes that a run's ranks left behind.

Such processes are found by their parent, their environment, their control group and the GPUs that they use.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator

from torchyard_agent.keeper.processes import cgroup, process_control
from torchyard_agent.telemetry.procfs import each_process, read_all

END_DEADLINE_S = 5.0
"""The longest wait in seconds for killed processes to exit."""


def of_replicas(
    names: Collection[str], sessions: Collection[int], others: Collection[int], spares: Collection[int] = ()
) -> list[int]:
    """Returns the PIDs of the descendants of this keeper that the given replicas left behind.

    If there are other processes (`others`), the replica of an orphan is found by its session or its environment. A
    program may leave its session, and setproctitle erases the environment, but hardly any program does both. If there
    are no other processes, all descendants of this keeper except `spares` are orphans.

    Args:
        names: The names of the replicas.
        sessions: The sessions of the replicas' ranks.
        others: The PIDs of processes that are not orphans, such as running ranks of other replicas.
        spares: The PIDs of the waiting interpreters.
    """
    everything = process_control.descendants(os.getpid())
    spared = {pid for rank in (*others, *spares) for pid in (rank, *process_control.descendants(rank))}
    orphans = [pid for pid in everything if pid not in spared]
    if not others:
        return orphans
    return [pid for pid in orphans if _session(pid) in sessions or _replica(pid) in names]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _replica(pid: int) -> str:
    """Returns the name of the replica in a process's initial environment, or "" if there is none."""
    try:
        variables = read_all(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return ""
    mark = b"TORCHYARD_REPLICA="
    return next((one[len(mark) :].decode("utf-8", "replace") for one in variables if one.startswith(mark)), "")


def find(run_dir: str) -> list[int]:
    """Returns the PIDs of this user's processes whose TORCHYARD_RUN_DIR is the run's folder or a folder in it."""
    return [pid for pid, path in run_dirs() if pid != os.getpid() and (path + "/").startswith(run_dir + "/")]


def run_dirs() -> Iterator[tuple[int, str]]:
    """Yields the PID and TORCHYARD_RUN_DIR of each process of this user whose environment has this variable."""
    mark = b"TORCHYARD_RUN_DIR="
    for pid, variables in each_process("environ"):
        for variable in variables.split(b"\0"):
            if variable.startswith(mark):
                yield pid, os.fsdecode(variable[len(mark) :])


def end(run_dir: str) -> list[int]:
    """Kills the processes in the run's control group and those that `find` returns. Returns those that remain.

    The call blocks for at most about END_DEADLINE_S.
    """
    deadline = time.monotonic() + END_DEADLINE_S
    node, _, run_id = run_dir.rstrip("/").rsplit("/", 3)[-3:]
    cgroup.end_leftovers(run_id, node)
    while left := find(run_dir):
        for pid in left:
            process_control.send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def still_on_gpus(uuids: Collection[str], pids: Collection[int]) -> list[str]:
    """Returns descriptions, such as "PID 4711 on GPU 0", of the processes `pids` that NVML still lists on the GPUs.

    The list is empty if NVML is not available. The call blocks for some tens of milliseconds.
    """
    if not uuids or not pids:
        return []
    # NVML is imported here, because only runs with GPUs need it.
    from torchyard_agent.telemetry.nvml import Nvml

    nvml = Nvml.open()
    if nvml is None:
        return []
    with contextlib.closing(nvml):
        return [
            f"PID {process['pid']} on GPU {gpu.index}"
            for gpu in nvml.gpus
            if gpu.uuid in uuids
            for process in nvml.running(gpu)
            if process["pid"] in pids
        ]
