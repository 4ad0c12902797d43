"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from torchyard_core.errors import FileProblem


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Replaces the file's content in one step, following a link to it. Raises FileProblem.

    An existing file keeps its mode; a new one gets `mode`, less the umask. Whoever reads meanwhile sees the old
    text or the new.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        except BaseException:  # Ctrl-C too: no half file stays
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileProblem(
            f"{path} cannot be written: {reason}.", code="unwritable_file", hint="Check the folder's rights and room."
        ) from None
