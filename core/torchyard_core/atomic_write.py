"""Atomic replacement of a file's content."""

from __future__ import annotations

import glob
import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

from torchyard_core.errors import FileProblem

_STALE_S = 3600.0
"""Age in seconds beyond which an unfinished copy cannot belong to a running writer."""


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Writes a file as `replace_content` does, but raises FileProblem instead of OSError."""
    try:
        replace_content(path, text, mode)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileProblem(
            f"{path} cannot be written: {reason}.", code="unwritable_file", hint="Check the folder's rights and room."
        ) from None


def replace_content(path: Path, text: str, mode: int = 0o666, *, errors: str = "strict") -> None:
    """Replaces a file's content in one step; a symbolic link is followed. Raises OSError.

    An existing file keeps its mode; a new file gets `mode`, reduced by the umask. Concurrent readers see either the old
    or the new text. Temporary files left by killed writers are removed.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors=errors, newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:  # BaseException includes KeyboardInterrupt, so that no partial file remains.
        temporary.unlink(missing_ok=True)
        raise


def _sweep(target: Path) -> None:
    """Removes temporary files in the target's folder that are too old to be in use."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 12}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                left.unlink()
