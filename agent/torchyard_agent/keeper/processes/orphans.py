"""Processes that a run's ranks left behind, found below this keeper, which is their subreaper."""

from __future__ import annotations

import os
from collections.abc import Collection

from torchyard_agent.keeper.processes import process_control


def of_replicas(
    names: Collection[str], sessions: Collection[int], others: Collection[int], spares: Collection[int] = ()
) -> list[int]:
    """What these replicas have left. `sessions` are those of their ranks, `others` the live ranks of other replicas,
    `spares` interpreters that wait for a rank.

    While others live, an orphan counts where its session or its environment says whose it is: a program may leave
    its session, and setproctitle erases the environment, but hardly anything does both.
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
    """What the environment that a process was started with says; empty where it says nothing."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    mark = b"TORCHYARD_REPLICA="
    return next((one[len(mark) :].decode("utf-8", "replace") for one in variables if one.startswith(mark)), "")
