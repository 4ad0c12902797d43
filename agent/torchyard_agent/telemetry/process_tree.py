"""Process trees, read from /proc/PID/task/TID/children.

If the kernel does not provide this file (CONFIG_PROC_CHILDREN), /proc is scanned for the parent of each process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence

from torchyard_agent.telemetry.procfs import each_process, read_all, stat_fields

HAS_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children(pid: int, all_threads: bool = True) -> list[int]:
    """Returns the direct children of a process, including zombies.

    If `all_threads` is false, only children of the main thread are returned. Returns [] if the process has exited.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task") if all_threads else [str(pid)]:
            with contextlib.suppress(OSError):  # The thread has ended since it was listed.
                found += map(int, read_all(f"/proc/{pid}/task/{thread}/children").split())
    return found


def children_by_parent() -> dict[int, list[int]]:
    """Returns the children of each process by the parent's PID, from a scan of /proc."""
    found: dict[int, list[int]] = {}
    for pid, line in each_process("stat"):
        found.setdefault(int(stat_fields(line)[1]), []).append(pid)
    return found


def descendants(
    roots: Iterable[int], all_threads: bool = True, table: Mapping[int, Sequence[int]] | None = None
) -> list[int]:
    """Returns the processes `roots` and all their descendants. Parents come before their children.

    Processes that end during the call may be missing.

    Args:
        table: The result of `children_by_parent`, if the caller has already called it.
    """
    if table is None and not HAS_CHILDREN_FILES:
        table = children_by_parent()
    found = list(dict.fromkeys(roots))
    seen = set(found)
    for pid in found:  # The list grows during this iteration, which therefore reaches all levels of the tree.
        for child in children(pid, all_threads) if table is None else table.get(pid, ()):
            if child not in seen:
                seen.add(child)
                found.append(child)
    return found
