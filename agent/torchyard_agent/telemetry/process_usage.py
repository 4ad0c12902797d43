"""CPU and memory use of the replicas' process trees, from proc(5)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchyard_agent.telemetry import process_tree
from torchyard_agent.telemetry.procfs import read, stat_fields

WALK_S = 3.0
"""Shortest interval in seconds between two searches for children of main threads, which start most processes."""
WALK_THREADS_S = 20.0
"""Shortest interval in seconds between two searches for children of all threads.

A training process has dozens of threads.
"""
MAX_OPEN_FILES = 256
"""Maximum number of stat files that are kept open. A process may usually open 1024 files."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Process:
    """A process of a replica. Up to MAX_OPEN_FILES stat files stay open, which halves the cost of a sample.

    An open file always belongs to this process, even if its PID is reused: once the process has exited, reads fail.
    """

    __slots__ = ("file", "pid", "ticks")
    open_files = 0

    def __init__(self, pid: int):
        self.pid = pid
        self.ticks: int | None = None
        self.file = -1
        if _Process.open_files < MAX_OPEN_FILES:
            with contextlib.suppress(OSError):
                self.file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
                _Process.open_files += 1

    def usage(self) -> tuple[int, int] | None:
        """Returns the CPU ticks and resident pages, or None once the process has exited."""
        try:
            line = os.pread(self.file, 1024, 0) if self.file >= 0 else read(f"/proc/{self.pid}/stat", 1024)
        except OSError:
            return None
        fields = stat_fields(line)
        return None if fields[0] in (b"Z", b"X") else (int(fields[11]) + int(fields[12]), int(fields[21]))

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
            _Process.open_files -= 1


class _Tree:
    """The processes of one replica, which are kept between samples."""

    __slots__ = ("processes", "roots", "time", "walk_at", "walk_threads_at")

    def __init__(self) -> None:
        self.roots: list[int] = []
        self.processes: dict[int, _Process] = {}
        self.time: float | None = None
        self.walk_at = self.walk_threads_at = 0.0

    def keep(self, pids: Iterable[int]) -> None:
        """Sets the processes of the replica, and closes the files of processes that are not in `pids`."""
        wanted = dict.fromkeys(pids)
        for pid in self.processes.keys() - wanted.keys():
            self.processes.pop(pid).close()
        for pid in wanted:
            if pid not in self.processes:
                self.processes[pid] = _Process(pid)


class ProcessTrees:
    """The CPU and memory use of several process trees, each with a name."""

    def __init__(self, children_files: bool | None = None):
        self._children_files = process_tree.HAS_CHILDREN_FILES if children_files is None else children_files
        self._trees: dict[str, _Tree] = {}

    def sample(self, replicas: Mapping[str, Sequence[int]], now: float) -> dict[str, dict[str, Any]]:
        """Returns {"cpu", "memory_mb", "processes"} of each replica at monotonic time `now`, as in `Sampler.sample`."""
        for name in self._trees.keys() - replicas.keys():
            self._trees.pop(name).keep(())
        self._walk_due(replicas, now)
        return {name: self._measure(self._trees[name], now) for name in replicas}

    def replica_of(self) -> dict[int, str]:
        """Returns the replica of each known PID."""
        return {pid: name for name, tree in self._trees.items() for pid in tree.processes}

    def _walk_due(self, replicas: Mapping[str, Sequence[int]], now: float) -> None:
        parents: dict[int, list[int]] | None = None
        for number, (name, roots) in enumerate(replicas.items()):
            tree = self._trees.setdefault(name, _Tree())
            fresh = tree.roots != list(roots)
            if not fresh and now < tree.walk_at:
                continue
            threads = fresh or now >= tree.walk_threads_at
            tree.roots = list(roots)
            # The searches are distributed over the samples, so the cost of each sample is small.
            tree.walk_at = now + WALK_S + 0.1 * (number % 10)
            if threads:
                tree.walk_threads_at = now + WALK_THREADS_S + (number % 10)
            if self._children_files:
                found = process_tree.descendants(roots, threads)
                # An earlier search has already found the children of other threads.
                tree.keep(found if threads else [*found, *tree.processes])
            else:
                tree.walk_at = now + 5 * WALK_S
                parents = process_tree.children_by_parent() if parents is None else parents
                tree.keep(process_tree.descendants(roots, table=parents))

    def _measure(self, tree: _Tree, now: float) -> dict[str, Any]:
        spent = pages = 0
        for process in list(tree.processes.values()):
            found = process.usage()
            if found is None:
                del tree.processes[process.pid]
                process.close()
                continue
            used, resident = found
            spent += used - (used if process.ticks is None else process.ticks)
            process.ticks = used
            pages += resident
        before, tree.time = tree.time, now
        return {
            "cpu": None if before is None or now <= before else round(100.0 * spent * _TICK_S / (now - before), 1),
            "memory_mb": pages * _PAGE >> 20,
            "processes": len(tree.processes),
        }
