"""Detects idle processes by the CPU time that they and their descendants use between samples.

A process that only occupies GPU memory uses no CPU time. A process that loads data, or waits for a GPU's computation,
does use CPU time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from torchyard_agent.telemetry.process_tree import descendants
from torchyard_agent.telemetry.procfs import read_stat

LEAST_PERCENT = 1.0
"""CPU time, in percent of one CPU, below which a process counts as idle.

A process that only has timers uses about this much.
"""
SHORTEST_S = 1.0
"""Shortest interval in seconds between measurements. On a busy host, a process may wait part of a second for a CPU."""
_TICKS_S = os.sysconf("SC_CLK_TCK")


class _Seen(NamedTuple):
    started: int
    ticks: int
    at: float
    asleep: bool


class Activity:
    """The CPU activity of processes since their last measurement."""

    def __init__(self, every_s: float):
        """Creates a detector that measures each process at most once in `every_s` seconds."""
        self._every_s = max(SHORTEST_S, every_s)
        self._seen: dict[int, _Seen] = {}

    def asleep(self, pids: Iterable[int], now: float) -> set[int]:
        """Returns the given PIDs whose processes were idle between their last two measurements.

        `now` is a monotonic time in seconds.
        """
        seen: dict[int, _Seen] = {}
        for pid in pids:
            before = self._seen.get(pid)
            if before is not None and now - before.at < self._every_s and _started(pid) == before.started:
                seen[pid] = before
                continue
            found = _measure(pid)
            if found is None:
                continue
            started, ticks = found
            asleep = False
            if before is not None and before.started == started and now > before.at:
                used = 100.0 * (ticks - before.ticks) / _TICKS_S / (now - before.at)
                # The difference is negative if a descendant, and thus its CPU time, has left the tree.
                asleep = 0.0 <= used < LEAST_PERCENT
            seen[pid] = _Seen(started, ticks, now, asleep)
        self._seen = seen
        return {pid for pid, one in seen.items() if one.asleep}


def _measure(pid: int) -> tuple[int, int] | None:
    """Returns a process's start time, and the CPU ticks of the process, its descendants and their reaped children.

    Returns None if the process has exited or is hidden from this user.
    """
    root = _fields(pid)
    if root is None:
        return None
    below = [_fields(one) for one in descendants([pid])[1:]]
    return int(root[19]), sum(sum(map(int, fields[11:15])) for fields in (root, *below) if fields is not None)


def _started(pid: int) -> int | None:
    fields = _fields(pid)
    return None if fields is None else int(fields[19])


def _fields(pid: int) -> list[bytes] | None:
    """Returns the fields of /proc/PID/stat from the third on, or None if the process has exited or is hidden."""
    try:
        return read_stat(pid)
    except (OSError, ValueError):
        return None
