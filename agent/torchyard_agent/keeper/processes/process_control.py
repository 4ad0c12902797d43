"""Control of processes by system calls: subreaper, parent-death signal, process trees and signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

from torchyard_agent.telemetry import process_tree

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def become_subreaper() -> None:
    """Makes this process the subreaper of its descendants. Processes that they orphan become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Makes the kernel send SIGKILL to this process when `parent` exits. Must be called in a forked child."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent may have exited between the fork and the prctl call.
        os.kill(os.getpid(), signal.SIGKILL)


def start_clean() -> None:
    """Restores default signal handlers and an empty signal mask. Must be called in a forked child."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def descendants(pid: int) -> list[int]:
    """Returns the PIDs of all descendants of a process. Parents come before their children."""
    return process_tree.descendants([pid])[1:]


def send(pid: int, number: int) -> bool:
    """Sends a signal to a process.

    Returns False if the process has exited or belongs to another user, for example after sudo.
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(leader: int, number: int) -> None:
    """Sends a signal to a process group. Has no effect if no process of the group may be signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def command_of(pid: int) -> str:
    """Returns a process's short name, for messages, or "?" if the process has exited."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def was_terminated(pid: int) -> bool:
    """Returns whether a child was killed by SIGTERM and has not been reaped yet."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None and found.si_code == os.CLD_KILLED and found.si_status == signal.SIGTERM


def may_signal(pid: int) -> bool:
    """Returns whether this process may signal `pid`.

    A process that has changed its user, for example by sudo, may not be signalled.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True  # The process has exited, which is no lack of permission.
    except PermissionError:
        return False
    return True
