"""Working folders as the desktop sent them: content-addressed files, and a manifest for each folder.

A manifest lists {"path", "mode", "size", "sha256"} for files, {"path", "link"} for symbolic links and
{"path", "folder"} for empty folders; the SHA-256 of its canonical JSON is the root that names the snapshot
(see `protocol.snapshot`). The store is shared by hosts that
share the home, so everything is written beside its place and renamed: it is there whole, or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from contextlib import suppress
from typing import Any

from torchyard_agent.protocol import paths
from torchyard_agent.protocol.snapshot_manifest import Entry, root_of

MANIFEST = "manifest.json"
_SMALL = 1 << 20
"""Bytes. Up to here a file is copied in one piece."""


class SnapshotProblem(Exception):
    """What was sent is not what the manifest says."""


class Incomplete(SnapshotProblem):
    """Files of the snapshot are not there (any more); they can be sent."""


def hash_file(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def has(agent_dir: str, root: str) -> bool:
    """Whether the snapshot is here whole. It counts as used now, which keeps it from being pruned."""
    path = os.path.join(paths.snapshot_dir(agent_dir, _checked(root)), MANIFEST)
    try:
        os.utime(path)
        return True
    except FileNotFoundError:
        # Over NFS another host's new folder may be hidden for a while; listing the one above it looks afresh.
        with suppress(OSError):
            os.listdir(os.path.dirname(os.path.dirname(path)))
        return os.path.isfile(path)


def read_manifest(agent_dir: str, root: str) -> list[Entry] | None:
    try:
        with open(os.path.join(paths.snapshot_dir(agent_dir, root), MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, list) else None


def missing(agent_dir: str, manifest: list[Entry]) -> list[str]:
    """Hashes of the files that the store does not hold yet, each once. One of a wrong size counts as missing."""
    wanted = {entry["sha256"]: entry["size"] for entry in manifest if "sha256" in entry}
    return sorted(sha256 for sha256, size in wanted.items() if _size(blob(agent_dir, sha256)) != size)


class Incoming:
    """Files on their way here from one sender, whose name keeps its pieces apart from those of others."""

    def __init__(self, agent_dir: str, sender: str):
        self._agent_dir = agent_dir
        self._sender = sender
        self._open: dict[str, tuple[str, Any, Any]] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def put(self, sha256: str, data: bytes, *, last: bool) -> None:
        """Takes a piece. Raises SnapshotProblem where the whole has not the hash that it was announced with, OSError.

        A file that cannot be written leaves nothing behind.
        """
        with self._lock:
            if not self._is_over:
                self._put(sha256, data, last)

    def _put(self, sha256: str, data: bytes, last: bool) -> None:
        target = blob(self._agent_dir, sha256)
        if sha256 not in self._open:
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            scratch = f"{target}.{self._sender}.part"
            self._open[sha256] = (scratch, open(scratch, "wb", buffering=0), hashlib.sha256())  # noqa: SIM115  # closed with its last piece
        scratch, file, digest = self._open[sha256]
        try:
            _write(file.fileno(), data)
            digest.update(data)
            if last:
                del self._open[sha256]
                file.close()
                if digest.hexdigest() != sha256:
                    raise SnapshotProblem("a file was damaged on the way, or changed while it was sent")
                os.rename(scratch, target)
        except BaseException:
            self._open.pop(sha256, None)
            file.close()
            with suppress(FileNotFoundError):
                os.unlink(scratch)
            raise

    def discard(self) -> None:
        """Forgets what is half here; nothing more is taken."""
        with self._lock:
            self._is_over = True
            while self._open:
                _, (scratch, file, _) = self._open.popitem()
                file.close()
                with suppress(OSError):
                    os.unlink(scratch)


def seal(agent_dir: str, manifest: list[Entry]) -> str:
    """Records the snapshot, once all of its files are in the store, and returns its root. Raises Incomplete."""
    root = root_of(manifest)
    if has(agent_dir, root):
        return root
    if missing(agent_dir, manifest):
        raise Incomplete("not all files of the snapshot have arrived")
    folder = paths.snapshot_dir(agent_dir, root)
    os.makedirs(folder, 0o700, exist_ok=True)
    scratch = os.path.join(folder, f"{MANIFEST}.{os.uname().nodename}.{os.getpid()}")
    with open(scratch, "w", encoding="utf-8") as file:
        json.dump(manifest, file)
    os.replace(scratch, os.path.join(folder, MANIFEST))
    return root


def materialize(agent_dir: str, root: str, target: str) -> None:
    """Writes the snapshot's files below `target`: a run's own copy, for it to do with as it likes."""
    manifest = read_manifest(agent_dir, root)
    if manifest is None:
        _forget(agent_dir, root)  # the host lost its power before the list was on its disk
        raise SnapshotProblem(f"the snapshot {root[:12]} is not on this host")
    os.makedirs(target, 0o700, exist_ok=True)
    made: set[str] = {target}
    for entry in manifest:
        place = os.path.normpath(os.path.join(target, entry["path"]))
        if not place.startswith(target + os.sep):
            raise SnapshotProblem(f"{entry['path']} leads out of the working folder")
        folder = place if entry.get("folder") else os.path.dirname(place)
        if folder not in made:
            os.makedirs(folder, 0o700, exist_ok=True)
            made.add(folder)
        if "link" in entry:
            os.symlink(entry["link"], place)
        elif "sha256" in entry:
            _copy(agent_dir, root, entry, place)


def blob(agent_dir: str, sha256: str) -> str:
    """Where a file with this content is kept."""
    return os.path.join(paths.store_dir(agent_dir), "files", _checked(sha256)[:2], sha256)


def _checked(sha256: str) -> str:
    if len(sha256) != 64 or not all(digit in "0123456789abcdef" for digit in sha256):
        raise SnapshotProblem("a file's hash must be 64 hex digits")
    return sha256


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _copy(agent_dir: str, root: str, entry: Entry, target: str) -> None:
    """The file, as few calls as can be: a run waits for ten thousand of them."""
    kept = blob(agent_dir, entry["sha256"])
    mode = (entry["mode"] & 0o777) | 0o600
    try:
        source = os.open(kept, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _damaged(agent_dir, root, entry) from None
    try:
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            size = _pour(source, copy)
            os.fchmod(copy, mode)  # whatever the umask is
        finally:
            os.close(copy)
    finally:
        os.close(source)
    if size != entry["size"]:  # the host lost its power before the file was on its disk
        os.unlink(kept)
        raise _damaged(agent_dir, root, entry)


def _pour(source: int, copy: int) -> int:
    """Copies an open file into another; returns how many bytes."""
    done = 0
    data = os.read(source, _SMALL)
    while data:
        _write(copy, data)
        done += len(data)
        if len(data) < _SMALL:
            break
        try:
            moved = os.copy_file_range(source, copy, 1 << 30) if hasattr(os, "copy_file_range") else 0
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            moved = 0  # not on this file system: by hand
        done += moved
        data = os.read(source, _SMALL)
    return done


def _write(file: int, data: bytes) -> None:
    """All of it: a disk that is nearly full takes a part, and says so only the next time."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _damaged(agent_dir: str, root: str, entry: Entry) -> SnapshotProblem:
    """The snapshot is no longer offered as whole: what is missing is sent again."""
    _forget(agent_dir, root)
    return SnapshotProblem(f"{entry['path']} was lost from this host's store")


def _forget(agent_dir: str, root: str) -> None:
    with suppress(OSError):
        os.unlink(os.path.join(paths.snapshot_dir(agent_dir, root), MANIFEST))
