"""Runs the command, and turns its errors into messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from torchyard_core.cli.output import discard_output, escape_unencodable, print_error
from torchyard_core.errors import TorchyardError, UsageError

# click's exceptions are imported through typer, because newer versions of typer contain their own copy of click.
WrongUsage: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
INTERRUPTED = 130
"""Exit status of a command that was ended by Ctrl-C. Shells use the same status."""

_SYSTEM_HINTS = {
    errno.ENOSPC: "Free disk space there, then try again.",
    errno.EDQUOT: "Free disk space there, then try again.",
    errno.EACCES: "Check the permissions of the file and its folder.",
    errno.EPERM: "Check the permissions of the file and its folder.",
    errno.EROFS: "Check the permissions of the file and its folder.",
    errno.EMFILE: "Raise the limit of open files: `ulimit -n 4096`.",
}


def run_and_exit(command: Callable[[], int | None]) -> NoReturn:
    """Calls a command of click that returns its exit code, and exits with this code, or with the code of its error.

    Errors are printed as messages or, with `--json`, as a line of JSON.
    """
    as_json = "--json" in sys.argv
    escape_unencodable()
    try:
        code = command()
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # Newer versions of typer return this exit code; older versions raise Abort.
        sys.exit(code)
    except TorchyardError as error:
        print_error(error, as_json=as_json)
        sys.exit(error.exit_code)
    except WrongUsage as error:
        if as_json:
            print_error(UsageError(error.format_message(), code="usage"), as_json=True)
        else:
            error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print_error(TorchyardError("interrupted.", code="interrupted"), as_json=as_json)
        sys.exit(INTERRUPTED)
    except Exception as error:  # Unexpected errors are printed without a traceback.
        explanation = unexpected_error(error)
        print_error(explanation, as_json=as_json)
        discard_output()
        sys.exit(explanation.exit_code)


def unexpected_error(error: Exception) -> TorchyardError:
    """Returns the error to print for an unexpected exception.

    For errors other than those in _SYSTEM_HINTS, the traceback is written to a file that the hint names.
    """
    if isinstance(error, OSError) and error.errno in _SYSTEM_HINTS:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return TorchyardError(f"{where}{error.strerror}.", code="system", hint=_SYSTEM_HINTS[error.errno])
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
