"""Atomic replacement of a file's content."""

from __future__ import annotations

import glob
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from torchyard_core.errors import FileProblem

_STALE_S = 3600.0
"""Age in seconds above which a temporary file is assumed to be left over from a killed writer."""


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Writes a file with `replace_content`, but raises FileProblem instead of OSError."""
    try:
        replace_content(path, text, mode)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileProblem(
            f"{path} cannot be written: {reason}.",
            code="unwritable_file",
            hint="Check the permissions and the free space of the folder.",
        ) from None


def replace_content(path: Path, text: str, mode: int = 0o666, *, errors: str = "strict") -> None:
    """Replaces a file's content atomically, or creates the file and its folder. Raises OSError if this fails.

    A symbolic link is followed. An existing file keeps its mode; a new file gets `mode`, reduced by the umask.
    Concurrent readers see either the old or the new text. Temporary files of `path` that are older than an hour are
    removed, because their writers must have been killed. `errors` is the error handler of the UTF-8 encoder, as in
    `open`.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors=errors, newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:  # BaseException includes KeyboardInterrupt, after which no partial file may remain.
        temporary.unlink(missing_ok=True)
        raise


def _sweep(target: Path) -> None:
    """Removes temporary files that were written for `target` and are older than `_STALE_S`."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 12}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                left.unlink()
