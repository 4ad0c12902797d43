"""Snapshots: the files of a working folder with their hashes. A root hash identifies each snapshot."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from torchyard_agent.protocol.jsonrpc import MAX_LINE
from torchyard_agent.protocol.snapshot_manifest import Entry, root_of
from torchyard_core.errors import RunFailed
from torchyard_core.launch.snapshots.excluded_files import included_files
from torchyard_core.launch.snapshots.file_hash_cache import FileHashCache
from torchyard_core.next_steps import SetField

MAX_FILES = 100_000
MAX_LIST = MAX_LINE - 4096
"""Maximum size in bytes of the list of files, which must fit into one message."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a working folder. `root` identifies the snapshot on all hosts."""

    folder: Path
    root: str
    manifest: list[Entry]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(entry.get("size", 0) for entry in self.manifest)

    def paths(self) -> dict[str, Path]:
        """Returns one path for each distinct hash of a file."""
        return {entry["sha256"]: self.folder / entry["path"] for entry in self.manifest if "sha256" in entry}


@dataclass(frozen=True)
class Listing:
    """The files that a snapshot of a working folder would contain, as known before they are read."""

    folder: Path
    found: list[tuple[str, os.stat_result | None]]
    """Paths of files, links and empty folders, with the status of each file. The path of a folder ends in `/`."""
    hashes: FileHashCache
    known: dict[str, str]

    @property
    def unseen(self) -> dict[str, int]:
        """The sizes, by path, of the files that are new or have changed since the last snapshot."""
        return {
            path: status.st_size
            for path, status in self.found
            if status is not None and not self.hashes.has_seen(path, status)
        }


def take_snapshot(
    folder: Path,
    exclude: tuple[str, ...] = (),
    cancelled: Event | None = None,
    caches: Path | None = None,
    before_reading: Callable[[Listing], None] = lambda listing: None,
) -> Snapshot:
    """Takes a snapshot of `folder`. Omits the files that .gitignore files and `exclude` exclude.

    Args:
        folder: The working folder.
        exclude: Patterns in the syntax of .gitignore.
        cancelled: If this event is set, the files that follow are omitted, so the snapshot is incomplete.
        caches: The folder of cached hashes, with which unchanged files are not read again. None disables caching.
        before_reading: Called with the list of files before they are read. An error that it raises ends the snapshot.

    Raises:
        RunFailed: The folder cannot be read, it has too many files, or the list of files is too large for a message.
    """
    cancelled = cancelled or Event()
    try:
        listing = list_folder(folder, exclude, cancelled, caches)
        before_reading(listing)
        manifest: list[Entry] = []
        for path, status in listing.found:
            if cancelled.is_set():
                break
            manifest.append(_entry(listing, path, status))
    except OSError as error:
        message = f"the working folder cannot be read: {error.strerror}: {error.filename}."
        hint = ("Correct its permissions, or exclude it.", SetField("program.exclude"))
        raise RunFailed(message, code="workdir", hint=hint) from error
    _refuse_too_many(folder, manifest)
    if not cancelled.is_set():
        listing.hashes.save()
    manifest.sort(key=lambda entry: str(entry["path"]))
    return Snapshot(folder, root_of(manifest), manifest)


def list_folder(folder: Path, exclude: tuple[str, ...], cancelled: Event, caches: Path | None) -> Listing:
    """Lists the files of `folder` that a snapshot would contain. Raises OSError if the folder cannot be read.

    After a cancellation, or with more than MAX_FILES files, the list is incomplete.
    """
    hashes = FileHashCache.of(folder, caches)
    listing = Listing(folder, [], hashes, {})
    for path, status in included_files(folder, exclude):
        if cancelled.is_set() or len(listing.found) > MAX_FILES:
            break
        listing.found.append((path, status))
        sha256 = None if status is None else hashes.known(path, status)
        if sha256 is not None:
            listing.known[path] = sha256
    return listing


def _refuse_too_many(folder: Path, manifest: list[Entry]) -> None:
    """Raises RunFailed if there are too many files, or if the list of files does not fit into one message."""
    listed = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(manifest) > MAX_FILES or len(listed) > MAX_LIST:
        count = f"more than {MAX_FILES:,}" if len(manifest) > MAX_FILES else f"{len(manifest):,}"
        message = f"the working folder {folder} holds {count} files, too many to send."
        hint = ("Exclude data folders in the topology or in .gitignore.", SetField("program.exclude"))
        raise RunFailed(message, code="too_many_files", hint=hint)


def _entry(listing: Listing, path: str, status: os.stat_result | None) -> Entry:
    if path.endswith("/"):
        return {"path": path.rstrip("/"), "folder": True}
    if status is None:
        return {"path": path, "link": str((listing.folder / path).readlink())}
    sha256 = listing.known.get(path)
    if sha256 is None:
        whole = listing.folder / path
        status = whole.stat()
        with whole.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        listing.hashes.note(path, status, sha256)
    return {"path": path, "mode": status.st_mode & 0o777, "size": status.st_size, "sha256": sha256}
