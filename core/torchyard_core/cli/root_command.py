"""The `torchyard` command: its commands and their common options."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.exit_codes import run_and_exit, unexpected_error
from torchyard_core.cli.output import discard_output, is_unread, repeat_options
from torchyard_core.home import Home, expand_user

COMMANDS = {
    "deploy": "deploy.deploy",
    "undeploy": "deploy.undeploy",
    "validate": "validate.validate",
    "plan": "plan.plan",
    "run": "run.run",
    "profile": "profile.profile",
    "advise": "advise.advise",
    "sweep": "sweep.sweep",
    "status": "status.status",
    "book": "book.book",
    "import": "import_export.import_",
    "export": "import_export.export",
    "gui": "gui.gui",
    "hosts": "hosts.app",
    "runs": "runs.app",
    "sweeps": "sweeps.app",
    "bookings": "bookings.app",
    "presets": "presets.app",
    "settings": "settings.app",
}
"""The commands in the order of the help, each with its module in `cli.commands` and its function or typer group."""


class LazyCommands(Mapping[str, Any]):
    """The click commands of COMMANDS by name. A command's module is imported when the command is looked up.

    Importing the modules of all commands takes a quarter of the time in which a short command runs.
    """

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            module, _, attribute = COMMANDS[name].partition(".")
            found = getattr(import_module(f"torchyard_core.cli.commands.{module}"), attribute)
            parent = typer.Typer(add_completion=False, rich_markup_mode=None)
            parent.callback()(lambda: None)  # Without a callback, typer would make no group for a single command.
            if isinstance(found, typer.Typer):
                parent.add_typer(found, name=name)
            else:
                parent.command(name)(found)
            self._imported[name] = typer.main.get_group(parent).commands[name]
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """The group of all commands.

    click would exit silently on any broken pipe. This class does so only if the reader of stdout or stderr has exited.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()  # type: ignore[assignment]  # typer only reads it.

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
