"""`torchyard gui`: starts the window and waits until it is closed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.output import Json, print_json
from torchyard_core.errors import UsageError
from torchyard_core.graphical_display import require_display

PROGRAM = "torchyard-gui"
FILE = typer.Argument(metavar="FILE", help="A topology file to open.", show_default=False)


def gui(context: typer.Context, file: Annotated[Path | None, FILE] = None, as_json: Json = False) -> None:
    """Open the window with a topology file or an empty canvas, and wait until it is closed.

    Exit code 1: the window failed. 2: the window is not installed, or there is no display.

    Example: torchyard gui train.yaml
    """
    chosen = command_context(context)
    program = find_program()
    require_display()
    command = [program, "--home", str(chosen.home.path), "--fleet", str(chosen.fleet_file)]
    # After `--`, the file name may begin with a dash.
    code = subprocess.run([*command, *(["--", str(file)] if file else [])]).returncode
    if as_json:
        print_json({"program": program, "exit_code": code})
    if code:
        raise typer.Exit(1)


def find_program() -> str:
    """Returns the path of the window's program, next to this Python interpreter or on PATH.

    Raises UsageError if there is none.
    """
    found = shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)
    if found is None:
        message = f"the window is not installed: there is no {PROGRAM} beside {sys.executable} or on your PATH."
        hint = "Install Torchyard again: `pip install torchyard`, or `make setup` in its source."
        raise UsageError(message, code="no_gui", hint=hint)
    return found
