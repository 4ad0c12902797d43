"""The `torchyard` command: options that all commands share, and one group a noun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from torchyard_core.cli.commands import (
    book,
    bookings,
    deploy,
    gui,
    hosts,
    import_export,
    plan,
    presets,
    run,
    runs,
    status,
    validate,
)
from torchyard_core.cli.context import Settings
from torchyard_core.cli.crash_report import explained
from torchyard_core.cli.output import advise_with, is_unread, leave_unread, print_error, write_whatever_comes
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.home import Home, expand_user


class Commands(TyperGroup):
    """All commands. click would end any command without a word at a broken pipe, be it to another program or of
    ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if not is_unread():
                raise explained(error) from error
            leave_unread()
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
app.command("status")(status.status)
app.command("book")(book.book)
app.add_typer(bookings.app, name="bookings")
app.command("import")(import_export.import_)
app.command("export")(import_export.export)
app.add_typer(presets.app, name="presets")
app.command("gui")(gui.gui)

# click's own exceptions; newer typers bring a copy of click with them, so they are found from what typer exports.
WrongUsage: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as shells have it."""


def _version(wanted: bool) -> None:
    if wanted:
        from torchyard_agent import __version__

        typer.echo(f"torchyard {__version__}")
        raise typer.Exit


@app.callback()
def settle(
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
    """Options before the command."""
    at = Home.at(home) if home else Home.default()
    advise_with(home=home, fleet=fleet)
    context.obj = Settings(at, expand_user(fleet) if fleet else at.fleet_file, yes, fleet_is_named=fleet is not None)
    context.call_on_close(context.obj.close)


def main() -> None:
    """Runs the command; whatever goes wrong is a sentence and an exit code, never a traceback."""
    as_json = "--json" in sys.argv
    write_whatever_comes()
    try:
        code = app(standalone_mode=False, prog_name="torchyard")
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # newer typers make this exit code of it; older ones an Abort
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
    except Exception as error:  # the outermost edge: whatever it is becomes a sentence
        explanation = explained(error)
        print_error(explanation, as_json=as_json)
        sys.exit(explanation.exit_code)


if __name__ == "__main__":
    main()
