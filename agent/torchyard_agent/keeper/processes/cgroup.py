"""A control group for the ranks of a run, if this login may create one (cgroup v2, delegated).

Descendants of a process stay in its group even if they change their session, parent or environment. Therefore the group
identifies orphans, and its processes can be killed even if they fork faster than they can be found. If there is no
group, orphans are found among the keeper's descendants (see `orphans`).
https://docs.kernel.org/admin-guide/cgroup-v2.html#delegation
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable

PREFIX = "torchyard-"
_REMOVE_WITHIN_S = 0.5
"""Time limit in seconds for removing a control group, which is busy for a moment after its last process was reaped."""

log = logging.getLogger(__name__)


class Cgroup:
    """The control group of a run, with a subgroup for each replica."""

    def __init__(self, path: str):
        self.path = path

    def join(self, replica: str, pid: int = 0) -> None:
        """Moves the process `pid` (0 for this process) to the replica's control group."""
        with contextlib.suppress(OSError), open(os.path.join(self._of(replica), "cgroup.procs"), "wb", 0) as file:
            file.write(str(pid).encode())

    def make(self, replica: str) -> None:
        """Creates the replica's control group. Must be called before the replica's ranks are forked."""
        with contextlib.suppress(OSError):
            os.makedirs(self._of(replica), exist_ok=True)

    def processes(self, replicas: Iterable[str]) -> list[int]:
        """Returns the PIDs of all processes of the given replicas, including their ranks."""
        found: list[int] = []
        for replica in replicas:
            with contextlib.suppress(OSError), open(os.path.join(self._of(replica), "cgroup.procs"), "rb") as file:
                found += [int(pid) for pid in file.read().split() if pid != b"0"]
        return found

    def kill(self, replicas: Iterable[str]) -> None:
        """Makes the kernel kill all processes of the given replicas. Has no effect on kernels before 5.14."""
        for replica in replicas:
            with contextlib.suppress(OSError), open(os.path.join(self._of(replica), "cgroup.kill"), "w") as file:
                file.write("1")

    def remove(self) -> None:
        """Removes the run's control groups, after waiting at most _REMOVE_WITHIN_S for their processes to exit."""
        deadline = time.monotonic() + _REMOVE_WITHIN_S
        while not remove(self.path) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _of(self, replica: str) -> str:
        return os.path.join(self.path, replica)


def create(run_id: str, node: str) -> Cgroup | None:
    """Creates a control group for a run below that of this process. Returns None if this login may not create one."""
    own = _own_group()
    if own is None or not os.access(os.path.join(own, "cgroup.procs"), os.W_OK):
        return None
    path = os.path.join(own, f"{PREFIX}{run_id}-{node}")
    try:
        os.mkdir(path)
    except FileExistsError:
        pass  # The control group was left behind by a keeper of this run that was killed.
    except OSError as error:
        log.info("no control group for the run: %s", error)
        return None
    return Cgroup(path)


def remove(path: str) -> bool:
    """Removes a run's control groups if they are empty, and returns whether they have been removed."""
    try:
        for replica in _replicas(path):
            os.rmdir(os.path.join(path, replica))
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def end_leftovers(run_id: str, node: str) -> None:
    """Kills the processes that are still in the run's control groups, and removes these groups.

    Processes may remain, for example, if the keeper was killed. Only control groups below that of this process are
    found.
    """
    own = _own_group()
    path = os.path.join(own or "", f"{PREFIX}{run_id}-{node}")
    if own is None or not os.path.isdir(path):
        return
    group = Cgroup(path)
    group.kill(_replicas(path))
    group.remove()


def _replicas(path: str) -> list[str]:
    return [name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name))]


def _own_group() -> str | None:
    """Returns the folder of this process's control group, or None if the process is in no group of cgroup v2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [line.split() for line in file if " - cgroup2 " in line]
    except OSError:
        return None
    if own is None or not mounts:
        return None
    root, point = mounts[-1][3], mounts[-1][4]
    if root != "/" and not own.startswith(root):
        return None
    path = os.path.join(point, (own if root == "/" else own[len(root) :]).lstrip("/")).rstrip("/")
    return path if os.path.isdir(path) else None
