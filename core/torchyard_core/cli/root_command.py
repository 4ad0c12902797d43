"""The `torchyard` command: its commands and their common options."""

from __future__ import annotations

import sys
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
from torchyard_core.cli.exit_codes import run_and_exit, unexpected_error
from torchyard_core.cli.output import discard_output, is_unread, repeat_options
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
                raise unexpected_error(error) from error
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
    run_and_exit(lambda: app(standalone_mode=False, prog_name="torchyard"))


if __name__ == "__main__":
    main()
