"""Messages for unexpected exceptions, with the traceback in a file."""

from __future__ import annotations

import errno
import os
import tempfile
import traceback

from torchyard_core.errors import TorchyardError

_HINTS = {
    errno.ENOSPC: "Make room there, then try again.",
    errno.EDQUOT: "Make room there, then try again.",
    errno.EACCES: "Check the rights of the file and of its folder.",
    errno.EPERM: "Check the rights of the file and of its folder.",
    errno.EROFS: "Check the rights of the file and of its folder.",
    errno.EMFILE: "Raise the limit of open files: `ulimit -n 4096`.",
}


def explained(error: Exception) -> TorchyardError:
    """The error to print for an exception; its hint names the file that holds the traceback."""
    if isinstance(error, OSError) and error.errno in _HINTS:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return TorchyardError(f"{where}{error.strerror}.", code="system", hint=_HINTS[error.errno])
    first_line = str(error).strip().partition("\n")[0].rstrip(".")
    what = f"{type(error).__name__}{f': {first_line}' if first_line else ''}"
    return TorchyardError(f"this is a fault in Torchyard itself: {what}.", code="fault", hint=_write_traceback(error))


def _write_traceback(error: Exception) -> str:
    try:
        descriptor, path = tempfile.mkstemp(prefix="torchyard-fault-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError as problem:
        return f"Its details could not be written: {problem.strerror}."
    return f"Please report it with {path}, which holds the details."
