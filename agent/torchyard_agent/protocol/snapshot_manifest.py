"""The manifest of a working folder's snapshot, as used on the desktop and on the host."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Entry = dict[str, Any]
"""{"path", "mode", "size", "sha256"} of a file, {"path", "link"} of a symbolic link, or
{"path", "folder": true} of an empty folder. Paths use `/`."""


def root_of(manifest: list[Entry]) -> str:
    """Returns the hash that names a snapshot: SHA-256 of its manifest as canonical JSON (sorted paths and keys)."""
    ordered = sorted(manifest, key=lambda entry: str(entry["path"]))
    return hashlib.sha256(json.dumps(ordered, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
