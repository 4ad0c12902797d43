"""Snapshots: the files of a working folder and their hashes, identified by a root hash.

The files of the program among them have a hash of their own (`code_root`). Topologies, search files and profiles are
often kept beside the script, and `advise --apply`, `profile -o` and `sweeps best -o` write them: they change the
snapshot, and not what the program computes. A document that the program may read belongs to it: one whose file name a
source file or an argument contains.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from threading import Event

from pathspec import GitIgnoreSpec

from torchyard_agent.protocol.jsonrpc import MAX_LINE
from torchyard_agent.protocol.snapshot_manifest import Entry, root_of
from torchyard_core.errors import FileProblem, RunFailed
from torchyard_core.gitignore import gitignore_spec
from torchyard_core.launch.file_hash_cache import FileHashCache
from torchyard_core.next_steps import SetField
from torchyard_core.topology.model import Topology

ALWAYS_LEFT_OUT = (".git/", "__pycache__/", ".venv/", "*.pyc")
"""Patterns of files that are excluded by default because runs do not need them."""
CREDENTIALS = (
    *(".ssh/", ".aws/", ".netrc", ".env", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"),
    *("*.pem", "*.key", "*.ppk"),
)
"""Patterns of files that are not sent unless `exclude` or .gitignore includes them by a pattern such as `!.env`."""
MAX_FILES = 100_000
MAX_LIST = MAX_LINE - 4096
"""Maximum size in bytes of the list of files. The list must fit into one message."""
YAML_SUFFIXES, PROFILE_SUFFIX = (".yaml", ".yml"), ".json"
SOURCE_SUFFIXES = (".py", ".sh")
MAX_DOCUMENT = 4 * 1024 * 1024
"""Maximum size of a document in bytes. Larger files count as files of the program."""
START_OF_DOCUMENT = 4096
"""Number of bytes in which a document's first keys are found, so that data files are not read to their ends."""
_PROFILE = re.compile(rb'\s*\{\s*"format"\s*:')
_YAML = re.compile(rb"^version\s*:", re.MULTILINE)


@dataclass(frozen=True)
class Snapshot:
    """The content of a working folder. `root` identifies it on all hosts."""

    folder: Path
    root: str
    manifest: list[Entry]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(entry.get("size", 0) for entry in self.manifest)

    def paths(self) -> dict[str, Path]:
        """Returns the path of one file for each distinct hash."""
        return {entry["sha256"]: self.folder / entry["path"] for entry in self.manifest if "sha256" in entry}


@dataclass(frozen=True)
class Listing:
    """The files that a snapshot of a working folder would contain, before they are read."""

    folder: Path
    found: list[tuple[str, os.stat_result | None]]
    """Paths of files, links and empty folders (which end in `/`), with the status of each file."""
    hashes: FileHashCache
    known: dict[str, str]

    @property
    def unseen(self) -> dict[str, int]:
        """The sizes, by path, of the files that have changed since the last snapshot, or were not in it."""
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
    """Takes a snapshot of `folder`, without the files that .gitignore files and `exclude` exclude.

    Args:
        folder: The working folder.
        exclude: Patterns in the syntax of .gitignore.
        cancelled: If it is set, reading ends and the snapshot is incomplete.
        caches: The folder of cached hashes. Unchanged files are not read again.
        before_reading: Called with the list of files. It may raise an error.

    Raises:
        RunFailed: The folder cannot be read or has too many files, or the list of files is too large for a message.
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
    """Returns the files of `folder` that a snapshot would contain. Raises OSError if it cannot be read.

    The list is incomplete after a cancellation, or if there are more than MAX_FILES files.
    """
    hashes = FileHashCache.of(folder, caches)
    listing = Listing(folder, [], hashes, {})
    for path, status in _files(folder, "", [(0, gitignore_spec([*ALWAYS_LEFT_OUT, *CREDENTIALS, *exclude]))]):
        if cancelled.is_set() or len(listing.found) > MAX_FILES:
            break
        listing.found.append((path, status))
        sha256 = None if status is None else hashes.known(path, status)
        if sha256 is not None:
            listing.known[path] = sha256
    return listing


def _refuse_too_many(folder: Path, manifest: list[Entry]) -> None:
    """Raises RunFailed for too many files, or if the list of files does not fit into one message."""
    listed = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(manifest) > MAX_FILES or len(listed) > MAX_LIST:
        count = f"more than {MAX_FILES:,}" if len(manifest) > MAX_FILES else f"{len(manifest):,}"
        message = f"the working folder {folder} holds {count} files, too many to send."
        hint = ("Exclude data folders in the topology or in .gitignore.", SetField("program.exclude"))
        raise RunFailed(message, code="too_many_files", hint=hint)


def _files(
    folder: Path, below: str, ignores: list[tuple[int, GitIgnoreSpec]]
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yields files, links and empty folders (whose path ends in `/`) below `folder`, with the status of each file.

    `ignores` contains the specs of .gitignore files, each with the length of the path of its folder.
    """
    here = folder / below
    own = here / ".gitignore"
    if own.is_file():
        ignores = [*ignores, (len(below), gitignore_spec(own.read_text(errors="replace").splitlines()))]
    with os.scandir(here) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        path = below + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        # As in git, the innermost .gitignore with a matching pattern takes precedence.
        verdicts = (spec.check_file((path + "/" * is_folder)[start:]).include for start, spec in reversed(ignores))
        if next((verdict for verdict in verdicts if verdict is not None), False):
            continue
        if is_folder:
            inside = _files(folder, path + "/", ignores)
            # Empty folders are kept, since a script may write to them.
            yield next(inside, (path + "/", None))
            yield from inside
        elif entry.is_symlink():
            yield path, None
        elif entry.is_file():
            yield path, entry.stat()


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


def code_root(snapshot: Snapshot, topology: Topology) -> str:
    """Returns the hash that identifies the program's files. Without other files, it is the snapshot's root.

    Empty folders do not count, since a folder may contain nothing but documents.
    """
    candidates = [entry for entry in snapshot.manifest if _may_be_document(entry)]
    documents = {entry["path"] for entry in candidates if _is_document(snapshot, entry)}
    if documents:
        documents -= _mentioned(documents, snapshot, topology)
    kept = [entry for entry in snapshot.manifest if not entry.get("folder") and entry["path"] not in documents]
    return snapshot.root if len(kept) == len(snapshot.manifest) else root_of(kept)


def _may_be_document(entry: Entry) -> bool:
    suffix = PurePosixPath(entry["path"]).suffix
    return "sha256" in entry and entry["size"] <= MAX_DOCUMENT and suffix in (*YAML_SUFFIXES, PROFILE_SUFFIX)


def _is_document(snapshot: Snapshot, entry: Entry) -> bool:
    """Returns whether a file is a valid topology, search or profile."""
    may_be_profile = PurePosixPath(entry["path"]).suffix == PROFILE_SUFFIX
    start = _read(snapshot, entry, START_OF_DOCUMENT)
    if start is None or not (_PROFILE.match(start) if may_be_profile else _YAML.search(start)):
        return False
    content = _read(snapshot, entry)
    if content is None or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        return False  # The file has changed since the snapshot.
    return _is_profile(content) if may_be_profile else _is_topology_or_search(content)


def _is_profile(content: bytes) -> bool:
    from torchyard_core.advisor.profile import is_profile  # Deferred, since most folders have no profile.

    return is_profile(content)


def _is_topology_or_search(content: bytes) -> bool:
    from torchyard_core.sweeps.search_file import search_from_text  # Many folders have no document.
    from torchyard_core.topology.file import topology_from_text

    try:
        text = content.decode("utf-8-sig")
        return topology_from_text(text).topology is not None or search_from_text(text).search is not None
    except (UnicodeDecodeError, FileProblem):
        return False


def _mentioned(documents: Iterable[str], snapshot: Snapshot, topology: Topology) -> set[str]:
    """Returns the documents whose file names the program's sources, arguments, setup or environment contain."""
    names = {path: PurePosixPath(path).name.encode("utf-8", "surrogateescape") for path in documents}
    script = PurePosixPath(topology.program.script or "")
    paths = ((entry, PurePosixPath(entry["path"])) for entry in snapshot.manifest if "sha256" in entry)
    sources = [entry for entry, path in paths if path.suffix in SOURCE_SUFFIXES or path == script]
    words = "\n".join(_words(topology)).encode("utf-8", "surrogateescape")
    found: set[str] = set()
    for content in chain([words], (_read(snapshot, entry) for entry in sources)):
        if content is None:
            return set(names)  # A source that cannot be read may mention any of them.
        found |= {path for path, name in names.items() if name in content}
    return found


def _words(topology: Topology) -> Iterable[str]:
    program = topology.program
    yield from (*program.command, *program.args, *program.setup, *program.env.values())
    for pool in topology.pools:
        yield from (*pool.args, *pool.env.values())


def _read(snapshot: Snapshot, entry: Entry, size: int = -1) -> bytes | None:
    """Returns the first `size` bytes of a file, by default all, or None if it cannot be read."""
    try:
        with Path(snapshot.folder, entry["path"]).open("rb") as file:
            return file.read(size)
    except OSError:
        return None
