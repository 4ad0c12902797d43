"""The store of working folder snapshots: files addressed by their content, and a manifest for each snapshot.

A manifest lists {"path", "mode", "size", "sha256"} for files, {"path", "link"} for symbolic links and {"path",
"folder"} for empty folders. The SHA-256 of its canonical JSON is the root that identifies the snapshot (see
`protocol.snapshot_manifest`). Hosts with the same home folder share the store. Therefore files are written under
another name and then renamed, so each file is complete or absent.
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
"""Largest size in bytes of a file that is copied in one piece."""


class SnapshotProblem(Exception):
    """Raised if a snapshot cannot be stored or copied, because data is missing, damaged or invalid."""


class Incomplete(SnapshotProblem):
    """Raised if files of the snapshot are missing in the store and must be uploaded."""


def hash_file(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def has(agent_dir: str, root: str) -> bool:
    """Returns whether the store has the snapshot's manifest, and delays the garbage collection of the snapshot.

    If the manifest exists, all files of the snapshot exist, because the manifest is written last.
    """
    path = os.path.join(paths.snapshot_dir(agent_dir, _checked(root)), MANIFEST)
    try:
        os.utime(path)
        return True
    except FileNotFoundError:
        # Over NFS, a folder that another host has just created may be invisible for a while. Listing its parent
        # refreshes the cache.
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
    """Returns the hashes of the files that are missing in the store, without duplicates.

    A file of the wrong size counts as missing.
    """
    wanted = {entry["sha256"]: entry["size"] for entry in manifest if "sha256" in entry}
    return sorted(sha256 for sha256, size in wanted.items() if _size(blob(agent_dir, sha256)) != size)


class Incoming:
    """The uploads of one desktop. `sender` distinguishes its partial files from those of other desktops."""

    def __init__(self, agent_dir: str, sender: str):
        self._agent_dir = agent_dir
        self._sender = sender
        self._open: dict[str, tuple[str, Any, Any]] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def put(self, sha256: str, data: bytes, *, last: bool) -> None:
        """Writes a part of a file. If this fails, the file is removed. Has no effect after `discard`.

        Raises:
            SnapshotProblem: The complete file does not have the expected hash.
            OSError: The part cannot be written.
        """
        with self._lock:
            if not self._is_over:
                self._put(sha256, data, last)

    def _put(self, sha256: str, data: bytes, last: bool) -> None:
        target = blob(self._agent_dir, sha256)
        if sha256 not in self._open:
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            scratch = f"{target}.{self._sender}.part"
            self._open[sha256] = (scratch, open(scratch, "wb", buffering=0), hashlib.sha256())  # noqa: SIM115  # The file is closed with its last piece.
        scratch, file, digest = self._open[sha256]
        try:
            _write(file.fileno(), data)
            digest.update(data)
            if last:
                del self._open[sha256]
                file.close()
                if digest.hexdigest() != sha256:
                    raise SnapshotProblem("a file was damaged in transit, or changed while it was sent")
                os.rename(scratch, target)
        except BaseException:  # The file is also removed after KeyboardInterrupt or SystemExit.
            self._open.pop(sha256, None)
            file.close()
            with suppress(FileNotFoundError):
                os.unlink(scratch)
            raise

    def discard(self) -> None:
        """Removes incomplete files. Parts that are received later are ignored."""
        with self._lock:
            self._is_over = True
            while self._open:
                _, (scratch, file, _) = self._open.popitem()
                file.close()
                with suppress(OSError):
                    os.unlink(scratch)


def seal(agent_dir: str, manifest: list[Entry]) -> str:
    """Writes the manifest of a snapshot, and returns its root. Raises Incomplete if files are missing in the store."""
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
    """Copies the snapshot's files to `target`, where a run may change them.

    Raises SnapshotProblem if a file is missing or damaged.
    """
    manifest = read_manifest(agent_dir, root)
    if manifest is None:
        _forget(agent_dir, root)  # A manifest that is damaged, for example by a power failure, is removed.
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
    """Returns the path of the stored file whose content has the hash `sha256`."""
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
    """Copies one file of a snapshot to `target`. Raises SnapshotProblem if the stored file is missing or damaged.

    Few system calls are used, because a launch may have to wait for ten thousand files.
    """
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
            os.fchmod(copy, mode)  # The mode is set explicitly, because it must not depend on the umask.
        finally:
            os.close(copy)
    finally:
        os.close(source)
    if size != entry["size"]:  # The stored file is damaged, for example truncated by a power failure.
        os.unlink(kept)
        raise _damaged(agent_dir, root, entry)


def _pour(source: int, copy: int) -> int:
    """Copies the content of one open file to another, and returns the number of bytes."""
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
            # The file system does not support copy_file_range(), so the rest is copied by read() and write().
            moved = 0
        done += moved
        data = os.read(source, _SMALL)
    return done


def _write(file: int, data: bytes) -> None:
    """Writes all data. On a nearly full disk, one call may write only a part, so several calls may be needed."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _damaged(agent_dir: str, root: str, entry: Entry) -> SnapshotProblem:
    """Marks a snapshot as incomplete, so that its missing files are uploaded again. Returns the error to raise."""
    _forget(agent_dir, root)
    return SnapshotProblem(f"{entry['path']} was lost from this host's store")


def _forget(agent_dir: str, root: str) -> None:
    with suppress(OSError):
        os.unlink(os.path.join(paths.snapshot_dir(agent_dir, root), MANIFEST))
