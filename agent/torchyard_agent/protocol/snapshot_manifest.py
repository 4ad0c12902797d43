"""The manifest of a working folder's snapshot. Desktops and hosts use the same format."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Entry = dict[str, Any]
"""{"path", "mode", "size", "sha256"} of a file, {"path", "link"} of a symbolic link, or
{"path", "folder": true} of an empty folder. Paths use `/`."""


def root_of(manifest: list[Entry]) -> str:
    """Returns the hash that identifies a snapshot: SHA-256 of the manifest as canonical JSON (sorted paths, keys)."""
    ordered = sorted(manifest, key=lambda entry: str(entry["path"]))
    return hashlib.sha256(json.dumps(ordered, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
