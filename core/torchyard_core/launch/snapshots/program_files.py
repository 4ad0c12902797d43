"""The hash of the program's files in a snapshot.

Profiles and the history of runs use the hash to find out whether the program has changed.

Documents (topologies, search files and profiles) are often stored beside the script, and `advise --apply`, `profile -o`
and `sweeps best -o` write them. A changed document changes the snapshot, but not what the program computes, so
documents are ignored. A document whose file name occurs in a source file or an argument is not ignored, because the
program may read it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path, PurePosixPath

from torchyard_agent.protocol.snapshot_manifest import Entry, root_of
from torchyard_core.errors import FileProblem
from torchyard_core.launch.snapshots.snapshot import Snapshot
from torchyard_core.topology.model import Topology

YAML_SUFFIXES, PROFILE_SUFFIX = (".yaml", ".yml"), ".json"
SOURCE_SUFFIXES = (".py", ".sh")
MAX_DOCUMENT = 4 * 1024 * 1024
"""Maximum size of a document in bytes. Larger files count as files of the program."""
START_OF_DOCUMENT = 4096
"""Number of bytes in which the first keys of a document must occur. No more bytes of other files are read."""
_PROFILE = re.compile(rb'\s*\{\s*"format"\s*:')
_YAML = re.compile(rb"^version\s*:", re.MULTILINE)


def code_root(snapshot: Snapshot, topology: Topology) -> str:
    """Returns the hash of the program's files. It equals the snapshot's root if the snapshot contains nothing else.

    Empty folders are ignored, because a folder that contains only documents is empty without them.
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
    """Returns whether a file is a valid topology, search file or profile."""
    may_be_profile = PurePosixPath(entry["path"]).suffix == PROFILE_SUFFIX
    start = _read(snapshot, entry, START_OF_DOCUMENT)
    if start is None or not (_PROFILE.match(start) if may_be_profile else _YAML.search(start)):
        return False
    content = _read(snapshot, entry)
    if content is None or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        return False  # The file has changed since the snapshot.
    return _is_profile(content) if may_be_profile else _is_topology_or_search(content)


def _is_profile(content: bytes) -> bool:
    from torchyard_core.advisor.profile import is_profile  # Imported only here, because most folders have no profile.

    return is_profile(content)


def _is_topology_or_search(content: bytes) -> bool:
    # Imported only here, because many folders contain neither a topology nor a search file.
    from torchyard_core.sweeps.search_file import search_from_text
    from torchyard_core.topology.file import topology_from_text

    try:
        text = content.decode("utf-8-sig")
        return topology_from_text(text).topology is not None or search_from_text(text).search is not None
    except (UnicodeDecodeError, FileProblem):
        return False


def _mentioned(documents: Iterable[str], snapshot: Snapshot, topology: Topology) -> set[str]:
    """Returns the documents whose file names occur in the program's sources, arguments, setup or environment."""
    names = {path: PurePosixPath(path).name.encode("utf-8", "surrogateescape") for path in documents}
    script = PurePosixPath(topology.program.script or "")
    paths = ((entry, PurePosixPath(entry["path"])) for entry in snapshot.manifest if "sha256" in entry)
    sources = [entry for entry, path in paths if path.suffix in SOURCE_SUFFIXES or path == script]
    words = "\n".join(_words(topology)).encode("utf-8", "surrogateescape")
    found: set[str] = set()
    for content in chain([words], (_read(snapshot, entry) for entry in sources)):
        if content is None:
            return set(names)  # An unreadable source may mention any document.
        found |= {path for path, name in names.items() if name in content}
    return found


def _words(topology: Topology) -> Iterable[str]:
    program = topology.program
    yield from (*program.command, *program.args, *program.setup, *program.env.values())
    for pool in topology.pools:
        yield from (*pool.args, *pool.env.values())


def _read(snapshot: Snapshot, entry: Entry, size: int = -1) -> bytes | None:
    """Returns the first `size` bytes of a file (by default all), or None if the file cannot be read."""
    try:
        with Path(snapshot.folder, entry["path"]).open("rb") as file:
            return file.read(size)
    except OSError:
        return None
