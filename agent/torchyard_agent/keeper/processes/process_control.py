"""Processes as the kernel sees them: becoming a subreaper, dying with a parent, trees and their ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

MOST_DESCRIPTORS = 65_536
"""Of a rank: the usual soft limit of 1,024 is used up by data loaders, shared tensors and peers. Not the hard limit,
which may be a billion: some programs close every descriptor up to their limit."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KNOWS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def become_subreaper() -> None:
    """Whoever below this process loses its parent becomes its child, however often it forked."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def raise_descriptor_limit() -> None:
    """Let this process and its children open MOST_DESCRIPTORS files, or as many as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def die_with(parent: int) -> None:
    """For a child just forked: SIGKILL when `parent`, the process that forked it, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended between the fork and here
        os.kill(os.getpid(), signal.SIGKILL)


def start_clean() -> None:
    """For a child just forked: default handlers and an empty signal mask, whatever its parent ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def children(pid: int) -> list[int]:
    """Direct children, zombies too; none where the process is gone."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


def _children_of_all() -> dict[int, list[int]]:
    """The same from all of /proc: for kernels built without CONFIG_PROC_CHILDREN."""
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, []).append(int(entry))
    return found


def descendants(pid: int) -> list[int]:
    """All below a process, parents before their children."""
    find = children if _KNOWS_CHILDREN else _children_of_all().get
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in find(parent) or []]
        found += level
    return found


def send(pid: int, number: int) -> bool:
    """Whether the signal could be sent; False where the process is gone or another user's (sudo)."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(leader: int, number: int) -> None:
    """Signals a whole process group; nothing happens where none of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def command_of(pid: int) -> str:
    """A process's short name, for sentences."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def may_signal(pid: int) -> bool:
    """False for what sudo started: another user's process, which no signal of ours reaches."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True  # just gone; its parent will have reaped it at the next look
    except PermissionError:
        return False
    return True
