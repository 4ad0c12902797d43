"""Locks for uploads to a store that several hosts share. Only one desktop at a time uploads a snapshot.

A lock is a file in the store, created with O_EXCL. Its owner updates the file's modification time as long as the owner
is alive. The clocks of hosts may differ, so the modification time itself is not compared with a clock. Instead, a lock
is stale if another daemon observes for STALE_AFTER_S that its modification time does not change. A lock that was taken
by another daemon of the same host is stale as soon as that daemon has exited.
"""

from __future__ import annotations

import contextlib
import os
import time

from torchyard_agent.protocol import paths

TOUCH_INTERVAL_S = 2.0
STALE_AFTER_S = 10.0
FORGOTTEN_AFTER_S = 3600.0
"""Age in seconds at which garbage collection ignores a lock. It is far greater than differences between clocks."""


class UploadLocks:
    """The upload locks that this daemon has taken for desktops, and its observations of other daemons' locks."""

    def __init__(self, agent_dir: str, node: str):
        self._folder = os.path.join(paths.store_dir(agent_dir), "sending")
        self._mine = f"{node} {os.getpid()}"
        self._held: dict[str, str] = {}
        self._watched: dict[str, tuple[int, float]] = {}

    def take(self, root: str, sender: str) -> bool:
        """Locks the snapshot for `sender`. Returns False if another sender has locked it.

        Raises OSError if this fails.
        """
        os.makedirs(self._folder, 0o700, exist_ok=True)
        path = os.path.join(self._folder, root)
        for _ in range(3):
            try:
                lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                if self._held.get(root) == sender:
                    return True
                if self.is_locked(root, sender):
                    return False
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                continue
            with os.fdopen(lock, "w") as file:
                file.write(self._mine)
            self._held[root] = sender
            self._watched.pop(root, None)
            return True
        return False

    def is_locked(self, root: str, sender: str) -> bool:
        """Returns whether another sender has locked the snapshot and the lock is not stale."""
        path = os.path.join(self._folder, root)
        return self._held.get(root) != sender and os.path.exists(path) and not self._is_stale(root, path)

    def release(self, sender: str, root: str | None = None) -> None:
        """Releases the sender's lock on `root`, or all locks of the sender if `root` is None."""
        for held in [name for name, holder in self._held.items() if holder == sender and root in (None, name)]:
            del self._held[held]
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, held))

    def touch(self) -> bool:
        """Refreshes the timestamps of all locks held by this daemon. Returns False if the daemon holds no locks."""
        for root in list(self._held):
            with contextlib.suppress(OSError):
                os.utime(os.path.join(self._folder, root))
        return bool(self._held)

    def are_held(self) -> bool:
        """Returns whether a daemon is uploading to this store, or stopped uploading within the last hour."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as locks:
            return any(abs(time.time() - lock.stat().st_mtime) < FORGOTTEN_AFTER_S for lock in locks)
        return False

    def _is_stale(self, root: str, path: str) -> bool:
        try:
            with open(path) as file:
                holder = file.read()
            touched = os.stat(path).st_mtime_ns
        except OSError:
            return False  # The lock was just released, or its file cannot be read.
        node, _, pid = holder.rpartition(" ")
        if node == self._mine.rpartition(" ")[0] and pid.isdigit() and holder != self._mine:
            return not os.path.exists(f"/proc/{pid}")  # The lock belongs to another daemon of this host.
        now = time.monotonic()
        seen = self._watched.get(root)
        if seen is None or seen[0] != touched:
            self._watched[root] = (touched, now)
            return False
        return now - seen[1] > STALE_AFTER_S
