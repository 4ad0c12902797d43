"""A lock for processes on several nodes: a file in a shared folder, which only one process at a time can create.

Creating a file exclusively is atomic on NFS too, even if NFS's lock daemon is not running. If the process that holds
the lock is killed, another process that waits for the lock removes the file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

STALE_S = 120.0
"""Time in seconds after which the holder of an unchanged lock is considered dead. Live processes release it sooner."""
LONGEST_PAUSE_S = 0.25


class SharedLock:
    """A context manager that holds the lock. It must not be entered twice at the same time."""

    def __init__(self, path: str, stale_s: float = STALE_S):
        self._path = path
        self._stale_s = stale_s
        self._token = ""

    def __enter__(self) -> None:
        self._token = f"{socket.gethostname()} {os.getpid()} {os.urandom(8).hex()}"
        seen: str | None = None
        since, pause = time.monotonic(), 0.005
        while not self._create():
            holder = _read(self._path)
            if holder is None or holder != seen:
                seen, since = holder, time.monotonic()
            elif time.monotonic() - since > self._stale_s:
                self._remove(holder)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def __exit__(self, *error: object) -> None:
        if _read(self._path) == self._token:  # Otherwise, another process has removed the lock as stale.
            os.unlink(self._path)

    def _create(self) -> bool:
        try:
            file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        os.write(file, self._token.encode())
        os.close(file)
        return True

    def _remove(self, holder: str) -> None:
        """Removes the lock of a killed process. If several processes try, only one of them succeeds."""
        taken = f"{self._path}.{os.urandom(8).hex()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._path, taken)
            if _read(taken) != holder:  # Another process has removed the lock and holds it now.
                with contextlib.suppress(FileExistsError):
                    os.link(taken, self._path)
            os.unlink(taken)


def _read(path: str) -> str | None:
    """Returns the holder of the lock, or None if it is free."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
