"""The safe shutdown of gloo: ranks wait for each other, and then for gloo's threads to become idle."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from torchyard_roles.errors import RolesError

THREAD_NAME = "pt_gloo_runloop"
SAMPLE_S = 0.02
SETTLE_S = 2.0
TOGETHER_S = 10.0
"""Longest time in seconds for which the ranks of a group wait for each other at the end."""


def wait_for_all_ranks() -> None:
    """Waits until all ranks of the group have finished their last collective, for at most TOGETHER_S.

    If a rank closed its connections earlier, gloo collectives on other ranks would fail.
    """
    store = dist.distributed_c10d._get_default_store()
    with suppress(RuntimeError, RolesError):
        store.set(f"group/finished/{dist.get_rank()}", "1")
        store.wait([f"group/finished/{rank}" for rank in range(dist.get_world_size())], timedelta(seconds=TOGETHER_S))


def settle(tasks: Path = Path("/proc/self/task")) -> None:
    """Waits until gloo's threads have released the tensors of the last collective, for at most SETTLE_S.

    The threads outlive the process group (torch 2.13). A thread that frees a tensor while the interpreter shuts down
    aborts the process, which was observed in 1 of 24 exits immediately after a collective. Threads that are asleep in
    two consecutive samples are waiting for work and hold no tensors.
    """
    deadline = time.monotonic() + SETTLE_S
    at_rest = 0
    while at_rest < 2 and time.monotonic() < deadline:
        time.sleep(SAMPLE_S)
        at_rest = at_rest + 1 if _asleep(tasks) else 0


def _asleep(tasks: Path) -> bool:
    if not tasks.is_dir():
        return True  # Without /proc, only the pauses between the samples give the threads time to finish.
    for task in tasks.iterdir():
        try:
            _, rest = (task / "stat").read_text(encoding="utf-8", errors="replace").split("(", 1)
        except OSError:
            continue  # The thread has ended since it was listed.
        name, fields = rest.rsplit(")", 1)
        if name == THREAD_NAME and fields.split()[0] != "S":
            return False
    return True
