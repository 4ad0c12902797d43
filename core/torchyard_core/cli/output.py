"""Output of commands: tables, sentences, JSON with --json, and progress on a terminal.

Control characters in text from hosts and other users are printed as escapes (`text_sanitizer`). Logs and documents are
printed unchanged if the output is not a terminal.
"""

from __future__ import annotations

import io
import json
import os
import select
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from torchyard_core.cli.table_layout import lay_out
from torchyard_core.errors import InvalidFile, TorchyardError
from torchyard_core.text_sanitizer import log_line, one_line, printable, printable_json

_on_screen: list[Any] = []

_called_with = ""
"""The options that the user has given before the command. Commands in hints repeat them."""

Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]


def escape_unencodable() -> None:
    """Makes stdout and stderr print escapes for characters that they cannot encode.

    These include file names that are not valid UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discards buffered output that cannot be written, because Python would try again and fail at exit.

    For example, output cannot be written after `head` at the end of a pipe has exited, or if the disk is full.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_unread() -> bool:
    """Returns whether the program that reads stdout or stderr has closed the pipe.

    A BrokenPipeError alone does not show this, because it may concern another pipe.
    """
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)  # poll() reports errors and hang-ups even if no events are requested.
    return bool(poll.poll(0))


def repeat_options(**options: object) -> None:
    """Sets the options that commands in hints repeat. An option whose value is None was not given."""
    global _called_with
    given = [f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    _called_with = "".join(given)


def as_called(text: str) -> str:
    """Returns the text with the options of `repeat_options` inserted into each `torchyard …` command.

    Users can thus copy the commands.
    """
    return text.replace("`torchyard ", f"`torchyard{_called_with} ")


def say(text: str = "", *, colour: str = "") -> None:
    """Prints a line on stdout. With `colour`, the line is bold and coloured on a terminal."""
    text = printable(text)
    typer.echo(typer.style(text, fg=colour, bold=True) if colour and sys.stdout.isatty() else text)


def print_document(text: str) -> None:
    """Prints a document on stdout. On a terminal, control characters are escaped."""
    typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)


def remark(text: str) -> None:
    """Prints a message on stderr, separate from the answer on stdout."""
    typer.echo(printable(as_called(text)), err=True)


def print_log_line(prefix: str, line: str, *, raw: bool = False) -> None:
    """Prints a line of a replica's log on stdout. On a terminal, control characters are escaped unless `raw`."""
    sys.stdout.write(f"{prefix}{line if raw or not sys.stdout.isatty() else log_line(line)}\n")


def print_json(value: Any) -> None:
    """Prints the answer as JSON on stdout."""
    typer.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """Prints an event of a stream as one line of JSON, and flushes stdout."""
    sys.stdout.write(printable_json(json.dumps(value, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def error_as_json(error: TorchyardError) -> dict[str, str]:
    """Returns the error as JSON, with the options of `repeat_options` in its commands."""
    return {name: as_called(text) for name, text in error.to_json().items()}


def print_error(error: TorchyardError, *, as_json: bool) -> None:
    """Prints the error on stderr, and with --json also on stdout."""
    if as_json:
        try:
            # The error is printed on a single line, because it may follow a stream of events.
            print_json_line({"error": error_as_json(error)})
        except OSError:
            discard_output()
    if isinstance(error, InvalidFile):
        remark(error.message)  # Editors and other tools parse these lines, which begin with file names.
        remark(f"torchyard: {error.hint}")
    else:
        remark(f"torchyard: {error.sentence()}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table. Each column is as wide as its widest cell.

    On a terminal that is too narrow, cells are wrapped, and rows may continue on further lines. Otherwise each row is
    one line, so that tools such as grep can process the output.
    """
    is_terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((0, 0)).columns if is_terminal else 0
    titles, lines = lay_out(headings, [list(map(one_line, row)) for row in rows], columns or None)
    for title in titles:
        typer.echo(typer.style(title, bold=True) if is_terminal else title)
    for line in lines:
        typer.echo(line)


@contextmanager
def progress_bars() -> Iterator[Any]:
    """Yields a progress display of the library rich on stderr, or None if stderr is not a terminal.

    Without a display, callers print lines of text.
    """
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


class HostProgress:
    """Progress of several hosts: a progress bar per host on a terminal, otherwise a line per host.

    `doing` and `sent` are thread-safe.
    """

    def __init__(self, hosts: Iterable[str], bars: Any):
        self._bars = bars
        self._tasks = {} if bars is None else {host: bars.add_task(f"{host}: logging in", total=None) for host in hosts}

    def doing(self, host: str, what: str) -> None:
        """Shows an operation of unknown duration."""
        if self._bars is not None:
            self._bars.update(self._tasks[host], description=printable(f"{host}: {what}"))

    def sent(self, host: str, done: int, total: int) -> None:
        """Shows the number of bytes sent out of the total."""
        if self._bars is not None:
            self._bars.update(self._tasks[host], description=f"{host}: sending", completed=done, total=total)

    def arrived(self, host: str, outcome: str) -> None:
        if self._bars is None:
            remark(f"{host}: {outcome}")
        else:
            self._bars.update(self._tasks[host], description=printable(f"{host}: {outcome}"), completed=1, total=1)


@contextmanager
def host_progress(hosts: Iterable[str]) -> Iterator[HostProgress]:
    """Shows the progress of hosts during the block."""
    with progress_bars() as bars:
        yield HostProgress(hosts, bars)


@contextmanager
def quiet_screen() -> Iterator[None]:
    """Hides progress bars during the block, so that the user can be asked a question."""
    paused = list(_on_screen)
    for progress in paused:
        progress.stop()
    try:
        yield
    finally:
        for progress in paused:
            if progress in _on_screen:
                progress.start()
