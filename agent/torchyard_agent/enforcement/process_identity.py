"""Which process a PID stands for, and signals that reach that one or nobody.

A PID is given to another process once the first has ended. Its start time (proc(5), field 22 of stat) and its UID tell
them apart; with a pidfd, opened before they are compared, nothing can change between the comparison and the signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

from torchyard_agent.telemetry.procfs import read

SENT, GONE, ANOTHER, REFUSED = "sent", "gone", "another process has its PID now", "not permitted"
HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")


class Identity(NamedTuple):
    pid: int
    started: int
    """Ticks since the boot."""
    uid: int


def identify(pid: int) -> Identity | None:
    """Who has the PID now; None where nobody has, or it is hidden (hidepid, a container's)."""
    try:
        stat = read(f"/proc/{pid}/stat", 1024)
        fields = stat[stat.rindex(b")") + 2 :].split()
        if fields[0] in (b"Z", b"X"):
            return None
        return Identity(pid, int(fields[19]), os.stat(f"/proc/{pid}").st_uid)
    except (OSError, ValueError, IndexError):
        return None


def ancestors(pid: int) -> Iterator[int]:
    """The processes above a process, its parent first, without init."""
    for _ in range(64):
        try:
            stat = read(f"/proc/{pid}/stat", 1024)
            pid = int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            return
        if pid <= 1:
            return
        yield pid


def send(wanted: Identity, number: int) -> str:
    """Signals that very process: SENT, GONE, ANOTHER or REFUSED."""
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
                descriptor = -1  # a kernel before 5.3
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
