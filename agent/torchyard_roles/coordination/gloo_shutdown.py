"""Waits for gloo's threads to become idle before the interpreter exits."""

from __future__ import annotations

import time
from pathlib import Path

THREAD_NAME = "pt_gloo_runloop"
SAMPLE_S = 0.02
SETTLE_S = 2.0


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
        return True  # If there is no /proc, the wait between two samples must suffice.
    for task in tasks.iterdir():
        try:
            _, rest = (task / "stat").read_text(encoding="utf-8", errors="replace").split("(", 1)
        except OSError:
            continue  # The thread has ended since it was listed.
        name, fields = rest.rsplit(")", 1)
        if name == THREAD_NAME and fields.split()[0] != "S":
            return False
    return True
