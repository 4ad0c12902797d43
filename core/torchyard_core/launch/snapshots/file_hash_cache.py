"""Cache of the hashes of a working folder's files, so that unchanged files need not be read again.

A file is unchanged if its size, times and inode are the same. If a file was modified just before it was read, its hash
is not stored, because the file could change again without a change of its times. (Git's documentation calls this the
racy Git problem.)
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem

VERSION = 1
RACY_NS = 2_000_000_000
"""Assumed resolution of file times in nanoseconds. It is that of FAT, the coarsest of all file systems."""
MAX_BYTES = 256 * 1024 * 1024

Entry = list[int | str]
"""[size, mtime_ns, ctime_ns, inode, sha256]. The hash is empty if it is not reliable."""


class FileHashCache:
    """The hashes of one folder's files. Without a cache file, no hashes are stored."""

    def __init__(self, file: Path | None = None):
        self._file = file
        self._began_ns = time.time_ns()
        self._known: dict[str, Entry] = _load(file) if file is not None else {}
        self._now: dict[str, Entry] = {}

    @staticmethod
    def of(folder: Path, caches: Path | None) -> FileHashCache:
        """Returns the cache of `folder`. Each folder has its own file below `caches`.

        If `caches` is None, no hashes are stored.
        """
        if caches is None:
            return FileHashCache()
        return FileHashCache(caches / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]}.json")

    def known(self, path: str, status: os.stat_result) -> str | None:
        """Returns the hash of a file, or None if it is unknown or the file has changed since it was read."""
        entry = self._known.get(path)
        if entry is None or entry[:4] != _fingerprint(status):
            return None
        self._now[path] = entry
        return str(entry[4]) or None

    def has_seen(self, path: str, status: os.stat_result) -> bool:
        """Returns whether the file was already read in its current state."""
        entry = self._known.get(path)
        return entry is not None and entry[:4] == _fingerprint(status)

    def note(self, path: str, status: os.stat_result, sha256: str) -> None:
        """Adds the hash of a file, or an empty hash if the file was modified just before it was read.

        `status` must be the file's status from before the file was read.
        """
        is_racy = max(status.st_mtime_ns, status.st_ctime_ns) >= self._began_ns - RACY_NS
        self._now[path] = [*_fingerprint(status), "" if is_racy else sha256]

    def save(self) -> None:
        """Writes the entries that were looked up or added. Drops all others, such as those of deleted files.

        Errors are ignored, because the file is only a cache.
        """
        if self._file is None or self._now == self._known:
            return
        with suppress(FileProblem):
            write_atomically(self._file, json.dumps({"version": VERSION, "files": self._now}), 0o600)


def _fingerprint(status: os.stat_result) -> Entry:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _load(file: Path) -> dict[str, Entry]:
    try:
        with file.open("rb") as opened:
            data = json.loads(opened.read(MAX_BYTES))
        if data["version"] != VERSION:
            return {}
        return {path: entry for path, entry in data["files"].items() if isinstance(entry, list) and len(entry) == 5}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
