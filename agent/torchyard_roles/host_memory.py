"""The free memory of the host, and a check before training that a shard fits into it."""

from __future__ import annotations

import sys
from pathlib import Path

MIB = 1024 * 1024


def available(meminfo: Path = Path("/proc/meminfo"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the free memory in bytes, limited by this process's cgroups (v2), or sys.maxsize if it is unknown."""
    left = sys.maxsize
    try:
        for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                left = int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # Systems other than Linux have no /proc/meminfo.
    for folder in _own_cgroups(cgroups):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            left = min(left, max(0, limit - used))
    return left


def _own_cgroups(root: Path) -> list[Path]:
    """Returns the cgroup of this process and its ancestors, each of which may have a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [root]
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / own.strip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # The file contains "max", or the cgroup has no memory controller.
        return None


def shortage(name: str, parts: dict[str, int], left: int) -> str:
    """Returns an error message if the sum of `parts` exceeds `left` (both in bytes), otherwise ""."""
    needed = sum(parts.values())
    if needed <= left:
        return ""
    listed = ", ".join(f"{what} {size / MIB:.0f} MiB" for what, size in parts.items() if size)
    return (
        f"{name} cannot hold its shard: it needs {needed / MIB:.0f} MiB ({listed}), and its host has "
        f"{left / MIB:.0f} MiB left. Add parameter servers, or place it on a host with more memory."
    )
