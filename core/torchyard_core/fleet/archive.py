"""The agent's archive: its sources as one blob, the same bytes from the same sources on every desktop."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable

from torchyard_agent import __version__

PACKAGES = ("torchyard_agent", "torchyard_roles")


@dataclass(frozen=True)
class Archive:
    """What is put on a host: `data` is zlib-compressed JSON, path to text; `sha256` its name there."""

    version: str
    sha256: str
    data: bytes
    bootstrap: bytes
    """The first code to run there, which stands alone (see `torchyard_agent.bootstrap`)."""
    unpacked: int
    """Bytes of its sources: what a host has less of was left half-written by a power cut."""


def _sources(folder: Traversable, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in folder.iterdir():
        below = f"{path}/{entry.name}"
        if entry.is_dir():
            found.update(_sources(entry, below))
        elif entry.name.endswith(".py"):
            found[below] = entry.read_text(encoding="utf-8")
    return found


@lru_cache(maxsize=1)
def build_archive() -> Archive:
    """The archive of this installation's agent and roles."""
    sources: dict[str, str] = {}
    for package in PACKAGES:
        sources.update(_sources(importlib.resources.files(package), package))
    text = json.dumps(sources, sort_keys=True, ensure_ascii=False)
    data = zlib.compress(text.encode(), 9)
    bootstrap = sources["torchyard_agent/bootstrap.py"].encode()
    unpacked = sum(len(source.encode()) for source in sources.values())
    return Archive(__version__, hashlib.sha256(data).hexdigest(), data, bootstrap, unpacked)
