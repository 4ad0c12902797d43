"""The agent's archive: the sources of the agent and of the roles as one compressed JSON document.

Desktops with the same sources build archives with the same hash.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable

from torchyard_agent import __version__

PACKAGES = ("torchyard_agent", "torchyard_roles")
ENTRY_POINTS = {
    "torchyard_ranks.dist-info/entry_points.txt": (
        "[torch.backends]\ntorchyard = torchyard_agent.tcp_store_binding:install\n"
    )
}
"""Package metadata that makes torch call `torchyard_agent.tcp_store_binding.install` when a rank imports torch."""


@dataclass(frozen=True)
class Archive:
    """The archive of the agent that is installed on hosts."""

    version: str
    sha256: str
    """SHA-256 of the JSON before compression, because different builds of zlib produce different output."""
    data: bytes
    """Zlib-compressed JSON that maps the paths of source files to their content."""
    bootstrap: bytes
    """The code that runs first on the host. It imports nothing from the archive (`torchyard_agent.bootstrap`)."""
    unpacked: str
    """SHA-256 of the unpacked sources, to detect incomplete or modified installations."""


def _sources(folder: Traversable, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in folder.iterdir():
        below = f"{path}/{entry.name}"
        if entry.is_dir():
            found.update(_sources(entry, below))
        elif entry.name.endswith(".py"):
            found[below] = entry.read_text(encoding="utf-8")
    return found


def hash_of_sources(sources: Mapping[str, str]) -> str:
    """Returns the hash of the sources. A host computes the same hash from its files (`torchyard_agent.bootstrap`)."""
    digest = hashlib.sha256()
    for path, text in sorted(sources.items()):
        data = text.encode()
        digest.update(b"%s\0%d\0" % (path.encode(), len(data)))
        digest.update(data)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def build_archive() -> Archive:
    """Builds the archive of this installation's agent and roles."""
    sources: dict[str, str] = {}
    for package in PACKAGES:
        sources.update(_sources(importlib.resources.files(package), package))
    sources.update(ENTRY_POINTS)
    text = json.dumps(sources, sort_keys=True, ensure_ascii=False).encode()
    data = zlib.compress(text, 9)
    bootstrap = sources["torchyard_agent/bootstrap.py"].encode()
    unpacked = hash_of_sources(sources)
    return Archive(__version__, hashlib.sha256(text).hexdigest(), data, bootstrap, unpacked)
