"""The CPUs and memory that this login may use, according to its CPU affinity and its control groups (v1 and v2).

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and .../cgroup-v1/
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from torchyard_agent.telemetry.procfs import read_or

ROOT = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"
_UNLIMITED = 1 << 60
"""Limits of this size in bytes or more count as no limit. cgroup v1 reports nearly 2**63 if there is no limit."""


def cpu_count(root: str = ROOT, membership: str = MEMBERSHIP) -> int:
    """Returns the number of CPUs that this login may use, at least 1."""
    count = float(len(os.sched_getaffinity(0)))
    for quota, period in _cpu_quotas(root, membership):
        count = min(count, quota / period)
    return max(1, int(count + 0.5))


def memory_bytes(root: str = ROOT, membership: str = MEMBERSHIP) -> int:
    """Returns the host's memory in bytes, or the limit of a control group if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _folders(root, membership, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(read_or(os.path.join(folder, name)))
            if limit is not None and 0 < limit < _UNLIMITED:
                total = min(total, limit)
    return total


def _cpu_quotas(root: str, membership: str) -> Iterator[tuple[int, int]]:
    for folder in _folders(root, membership, "cpu"):
        words = read_or(os.path.join(folder, "cpu.max")).split()
        if len(words) != 2:
            words = [
                read_or(os.path.join(folder, "cpu.cfs_quota_us")).strip(),
                read_or(os.path.join(folder, "cpu.cfs_period_us")).strip(),
            ]
        quota, period = _number(words[0]), _number(words[1])
        if quota is not None and period is not None and quota > 0 and period > 0:
            yield quota, period


def _folders(root: str, membership: str, controller: str) -> Iterator[str]:
    """Yields the folders of this process's control group and its parents, each of which may set a limit."""
    for line in read_or(membership).decode(errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root, os.path.join(root, "unified")]
        elif controller in controllers.split(","):
            mounts = [os.path.join(root, controllers), os.path.join(root, controller)]
        else:
            continue
        for mount in mounts:
            folder = path
            while folder not in ("/", ""):
                yield mount + folder
                folder = os.path.dirname(folder)
            yield mount


def _number(text: bytes) -> int | None:
    try:
        return int(text)
    except ValueError:  # The file contains "max" or does not exist.
        return None
