"""The `torchyard` command: its commands, their common options, and the exit codes."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from torchyard_core.cli.commands import (
    advise,
    book,
    bookings,
    deploy,
    gui,
    hosts,
    import_export,
    plan,
    presets,
    profile,
    run,
    runs,
    settings,
    status,
    sweep,
    sweeps,
    validate,
)
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.output import discard_output, escape_unencodable, is_unread, print_error, repeat_options
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.home import Home, expand_user


class Commands(TyperGroup):
    """The group of all commands.

    click would exit silently on any broken pipe. This class does so only if the reader of stdout or stderr has exited.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # Without this flush, a write error at exit would be printed as a traceback.
            return result
        except BrokenPipeError as error:
            if not is_unread():
                raise _explained(error) from error
            discard_output()
            raise typer.Exit(1) from None


app = typer.Typer(
    name="torchyard",
    cls=Commands,
    help="Draw a training cluster, launch it on your own GPU hosts over plain SSH, and follow it to its end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(hosts.app, name="hosts")
app.command("deploy")(deploy.deploy)
app.command("undeploy")(deploy.undeploy)
app.command("validate")(validate.validate)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.add_typer(runs.app, name="runs")
app.command("profile")(profile.profile)
app.command("advise")(advise.advise)
app.command("sweep")(sweep.sweep)
app.add_typer(sweeps.app, name="sweeps")
app.command("status")(status.status)
app.command("book")(book.book)
app.add_typer(bookings.app, name="bookings")
app.command("import")(import_export.import_)
app.command("export")(import_export.export)
app.add_typer(presets.app, name="presets")
app.add_typer(settings.app, name="settings")
app.command("gui")(gui.gui)

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


def _version(wanted: bool) -> None:
    if wanted:
        from torchyard_agent import __version__

        typer.echo(f"torchyard {__version__}")
        raise typer.Exit


@app.callback()
def set_up(
    context: typer.Context,
    home: Annotated[
        Path | None, typer.Option(help="Folder of your own files (default: $TORCHYARD_HOME, else the platform's).")
    ] = None,
    fleet: Annotated[Path | None, typer.Option(help="The fleet file (default: fleet.yaml in the home).")] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Processes the options that precede the name of the command."""
    at = Home.at(home) if home else Home.default()
    repeat_options(home=home, fleet=fleet)
    fleet_file = expand_user(fleet) if fleet else at.fleet_file
    context.obj = CommandContext(at, fleet_file, yes, fleet_is_named=fleet is not None)
    context.call_on_close(context.obj.close)


def main() -> None:
    """Runs the command and exits with its exit code. Errors are printed as messages, not as tracebacks."""
    as_json = "--json" in sys.argv
    escape_unencodable()
    try:
        code = app(standalone_mode=False, prog_name="torchyard")
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
        explanation = _explained(error)
        print_error(explanation, as_json=as_json)
        discard_output()
        sys.exit(explanation.exit_code)


def _explained(error: Exception) -> TorchyardError:
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


if __name__ == "__main__":
    main()
