"""Hashes of a working folder's files, kept on this computer: a file that looks untouched is not read again.

Untouched means the same size, times and inode. Of a file that had changed within moments of being read, only the looks
are kept: it could change once more without any of these moving. (Git knows this as the racy index.)
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
"""Times of files are as coarse as this on some file systems."""
MAX_BYTES = 256 * 1024 * 1024

Seen = list[int | str]
"""[size, mtime_ns, ctime_ns, inode, sha256]; the hash is empty where it is not to be trusted."""


class FileHashCache:
    """What is known of one folder's files. `file` None: nothing, and nothing is kept."""

    def __init__(self, file: Path | None = None):
        self._file = file
        self._began_ns = time.time_ns()
        self._known: dict[str, Seen] = _load(file) if file is not None else {}
        self._now: dict[str, Seen] = {}

    @staticmethod
    def of(folder: Path, caches: Path | None) -> FileHashCache:
        """Those of `folder`, in a file of its own below `caches`; None keeps none."""
        if caches is None:
            return FileHashCache()
        return FileHashCache(caches / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]}.json")

    def known(self, path: str, status: os.stat_result) -> str | None:
        """The file's hash, where it looks as it did when it was last read."""
        seen = self._known.get(path)
        if seen is None or seen[:4] != _looks(status):
            return None
        self._now[path] = seen
        return str(seen[4]) or None

    def has_seen(self, path: str, status: os.stat_result) -> bool:
        """Whether the file was read before, looking as it does now."""
        seen = self._known.get(path)
        return seen is not None and seen[:4] == _looks(status)

    def note(self, path: str, status: os.stat_result, sha256: str) -> None:
        """The file was read; `status` is from before that."""
        is_racy = max(status.st_mtime_ns, status.st_ctime_ns) >= self._began_ns - RACY_NS
        self._now[path] = [*_looks(status), "" if is_racy else sha256]

    def save(self) -> None:
        """Keeps what was noted since; forgets files that are gone. A cache that cannot be written is none."""
        if self._file is None or self._now == self._known:
            return
        with suppress(FileProblem):
            write_atomically(self._file, json.dumps({"version": VERSION, "files": self._now}), 0o600)


def _looks(status: os.stat_result) -> Seen:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _load(file: Path) -> dict[str, Seen]:
    try:
        with file.open("rb") as opened:
            data = json.loads(opened.read(MAX_BYTES))
        if data["version"] != VERSION:
            return {}
        return {path: seen for path, seen in data["files"].items() if isinstance(seen, list) and len(seen) == 5}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
