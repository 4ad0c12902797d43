"""Whether a file was written since it was last looked at."""

from __future__ import annotations

from pathlib import Path


def signature_of(path: Path) -> object:
    """Another one after every change of the file; None where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
