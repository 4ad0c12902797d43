"""Identifies processes even if PIDs are reused, and sends signals only to the identified process.

The start time (proc(5), field 22 of stat) and the UID distinguish processes with the same PID. If the kernel supports
pidfds, a pidfd is opened before these values are compared. The PID can then not be reused between the comparison and
the signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

from torchyard_agent.telemetry.procfs import read_stat

SENT, GONE, ANOTHER, REFUSED = "sent", "gone", "another process has its PID now", "not permitted"
HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")


class Identity(NamedTuple):
    pid: int
    started: int
    """The start time in ticks since boot."""
    uid: int


def identify(pid: int) -> Identity | None:
    """Returns the identity of a process, or None if the process has exited or is hidden (hidepid, container)."""
    try:
        fields = read_stat(pid)
        if fields[0] in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) <= 1:
            return None  # A process whose main thread has exited still runs while it has other threads.
        return Identity(pid, int(fields[19]), os.stat(f"/proc/{pid}").st_uid)
    except (OSError, ValueError, IndexError):
        return None


def ancestors(pid: int) -> Iterator[int]:
    """Yields at most 64 ancestors of a process, beginning with its parent. init is excluded."""
    for _ in range(64):
        try:
            pid = int(read_stat(pid)[1])
        except (OSError, ValueError, IndexError):
            return
        if pid <= 1:
            return
        yield pid


def send(wanted: Identity, number: int) -> str:
    """Sends a signal to the identified process. Returns SENT, GONE, ANOTHER or REFUSED."""
    if wanted.pid <= 1:
        return REFUSED
    descriptor = -1
    try:
        if HAS_PIDFD:
            try:
                descriptor = os.pidfd_open(wanted.pid)
            except ProcessLookupError:
                return GONE
            except OSError:
                descriptor = -1  # Kernels before 5.3 have no pidfd.
        now = identify(wanted.pid)
        if now is None:
            return GONE
        if now != wanted:
            return ANOTHER
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(wanted.pid, number)
        return SENT
    except ProcessLookupError:
        return GONE
    except PermissionError:
        return REFUSED
    finally:
        if descriptor >= 0:
            os.close(descriptor)
