"""Snapshots of unsaved changes, which can be restored after a crash of the program.

A document with unsaved changes has two files: the snapshot (`<token>.json`) and a lock file (`<token>.lock`) with the
writer's PID, which the writer keeps locked. The lock, not the PID, shows whether the writer is running: the system
reuses PIDs, but releases the lock when the process exits for any reason.

The files are in Torchyard's own folder, since the document's folder may be uploaded to hosts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem

MAX_BYTES = 64 * 1024 * 1024
PRIVATE = 0o600


@dataclass(frozen=True)
class UnsavedWork:
    """Unsaved changes of a document whose writer has exited."""

    token: str
    path: Path | None
    """The document's file; None for a document that was never saved."""
    text: str
    written_at: datetime


class Recovery:
    """The snapshot of one open document, and access to snapshots whose writers have exited."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._token = os.urandom(8).hex()
        self._lock: int | None = None

    def write(self, path: Path | None, text: str) -> None:
        """Writes the snapshot of a document with unsaved changes. Raises FileProblem if it cannot be written."""
        if self._lock is None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._lock_file(self._token), os.O_RDWR | os.O_CREAT, PRIVATE)
                _try_lock(self._lock)
                os.write(self._lock, f"{os.getpid()}\n".encode())
            except OSError as problem:
                reason = problem.strerror or str(problem)
                raise FileProblem(f"{self._folder} cannot be written: {reason}.", code="unwritable_file") from None
        record = {
            "path": str(path) if path is not None else None,
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "text": text,
        }
        write_atomically(self._snapshot(self._token), json.dumps(record, ensure_ascii=False), PRIVATE)

    def clear(self) -> None:
        """Removes the snapshot and its lock file, after the changes were saved or discarded."""
        if self._lock is not None:
            self._snapshot(self._token).unlink(missing_ok=True)
            self.abandon()
            self._lock_file(self._token).unlink(missing_ok=True)

    def abandon(self) -> None:
        """Releases the lock but keeps the snapshot, which the next start of the program can restore."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def unsaved_work(self) -> list[UnsavedWork]:
        """Returns the readable snapshots whose writers have exited, from newest to oldest."""
        found = [work for token in self._tokens() if self._is_orphan(token) and (work := self._read(token))]
        return sorted(found, key=lambda work: work.written_at, reverse=True)

    def discard(self, work: UnsavedWork) -> None:
        """Removes a snapshot and its lock file, after the changes were restored or declined."""
        self._snapshot(work.token).unlink(missing_ok=True)
        self._lock_file(work.token).unlink(missing_ok=True)

    def _tokens(self) -> Iterator[str]:
        with suppress(OSError):
            yield from sorted(path.stem for path in self._folder.glob("*.json"))

    def _is_orphan(self, token: str) -> bool:
        if token == self._token:
            return False
        try:
            lock = os.open(self._lock_file(token), os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            return _try_lock(lock)
        finally:
            os.close(lock)

    def _read(self, token: str) -> UnsavedWork | None:
        try:
            with self._snapshot(token).open("rb") as file:
                record = json.loads(file.read(MAX_BYTES))
            path = record["path"]
            written_at = datetime.fromisoformat(record["written_at"])
            return UnsavedWork(token, Path(path) if path else None, str(record["text"]), written_at)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _snapshot(self, token: str) -> Path:
        return self._folder / f"{token}.json"

    def _lock_file(self, token: str) -> Path:
        return self._folder / f"{token}.lock"


def _try_lock(descriptor: int) -> bool:
    """Locks a file until its descriptor is closed. Returns False if another process has locked the file."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
