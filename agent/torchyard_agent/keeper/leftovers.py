"""After a keeper's own death (`kill -9`, the host out of memory): what its ranks left running is found and ended.

The ranks themselves die with their keeper (PDEATHSIG). What they had started is no keeper's child any more. The run's
control group knows it; where there was none, its environment alone does, which a process may erase (`setproctitle`
does): so this is the last resort, never the way a run is stopped. The daemon calls it when it finds a run that has no
end and no keeper.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from torchyard_agent.keeper.processes import cgroup, process_control

ENDED_WITHIN_S = 5.0


def find(run_dir: str) -> list[int]:
    """Processes of this user whose environment names the run's folder, or a place in it."""
    mark = b"TORCHYARD_RUN_DIR=" + os.fsencode(run_dir)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if any(value == mark or value.startswith(mark + b"/") for value in file.read().split(b"\0")):
                    found.append(int(entry))
    return found


def end(run_dir: str) -> list[int]:
    """Kills them, waits until they are gone, and returns those that are not. Blocks up to ENDED_WITHIN_S seconds."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    node, _, run_id = run_dir.rstrip("/").rsplit("/", 3)[-3:]
    cgroup.end_leftovers(run_id, node)
    while left := find(run_dir):
        for pid in left:
            process_control.send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left
