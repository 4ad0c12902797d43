"""How commands answer: tables and sentences for people, JSON for programs, progress on a terminal only.

All that a command prints goes through here, where control characters in the words of hosts and colleagues are shown as
escapes (`plain_text`); logs and documents are left as they are where they do not go to a terminal.
"""

from __future__ import annotations

import io
import json
import os
import re
import select
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from torchyard_core.errors import TorchyardError
from torchyard_core.text_sanitizer import log_line, one_line, printable, printable_json

_on_screen: list[Any] = []
"""Progress bars that are drawing now."""

_called_with = ""
"""Options before the command, which commands that we advise to have to repeat."""

Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]


def write_whatever_comes() -> None:
    """A letter that the terminal's encoding lacks, or a file's name that is no UTF-8, is written with a backslash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def leave_unread() -> None:
    """Nobody takes our output any more (`| head`, a full disk): what is still in our buffers goes nowhere, without a
    complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_unread() -> bool:
    """Whether the reader of stdout or stderr has gone. A BrokenPipeError may also be of a pipe to another program."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)  # errors and hang-ups are always told
    return bool(poll.poll(0))


def advise_with(**options: object) -> None:
    """From now on advised commands repeat these options before the command; None is one that was not given."""
    global _called_with
    given = [f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    _called_with = "".join(given)


def as_called(text: str) -> str:
    """A sentence whose `torchyard …` can be copied: with the options that this command was given."""
    return re.sub(r"`torchyard (?=[a-z])", lambda found: f"{found[0].rstrip()}{_called_with} ", text)


def say(text: str = "", *, colour: str = "") -> None:
    """A line for people, on stdout; in bold and a colour where that is a terminal."""
    text = printable(text)
    typer.echo(typer.style(text, fg=colour, bold=True) if colour and sys.stdout.isatty() else text)


def print_document(text: str) -> None:
    """A document on stdout as it is; on a terminal without control characters."""
    typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)


def remark(text: str) -> None:
    """A line beside the answer, on stderr."""
    typer.echo(printable(as_called(text)), err=True)


def print_log_line(prefix: str, line: str, *, raw: bool = False) -> None:
    """A line that a replica printed, on stdout; on a terminal without control characters unless it is to be `raw`."""
    sys.stdout.write(f"{prefix}{line if raw or not sys.stdout.isatty() else log_line(line)}\n")


def print_json(value: Any) -> None:
    """The answer as JSON on stdout."""
    typer.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One event of a stream: a line, flushed at once."""
    sys.stdout.write(printable_json(json.dumps(value, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def error_as_json(error: TorchyardError) -> dict[str, str]:
    """Its advice can be followed as it is, too."""
    return {name: as_called(text) for name, text in error.to_json().items()}


def print_error(error: TorchyardError, *, as_json: bool) -> None:
    """The sentence on stderr; with --json the error on stdout as well, where that still takes something."""
    if as_json:
        try:
            print_json_line({"error": error_as_json(error)})  # one line: it may end a stream of events
        except OSError:
            leave_unread()
    remark(f"torchyard: {error.sentence()}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last one is never cut or wrapped, so that lines can be searched."""
    cells = [list(headings), *[list(map(one_line, row)) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    bold = sys.stdout.isatty()
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        typer.echo(typer.style(line, bold=True) if bold and number == 0 else line)


@contextmanager
def progress_bars() -> Iterator[Any]:
    """A rich progress display on stderr where that is a terminal, else None (callers then print plain lines)."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        _on_screen.append(progress)
        try:
            yield progress
        finally:
            _on_screen.remove(progress)


@contextmanager
def quiet_screen() -> Iterator[None]:
    """Keeps progress bars from drawing over what is asked meanwhile."""
    paused = list(_on_screen)
    for progress in paused:
        progress.stop()
    try:
        yield
    finally:
        for progress in paused:
            if progress in _on_screen:
                progress.start()
