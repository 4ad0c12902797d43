"""Logs of replicas: printed whole or from a tail, and followed."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import typer

from torchyard_core.cli.output import print_json_line, print_log_line, remark
from torchyard_core.errors import AgentRefused, HostError, TorchyardError
from torchyard_core.launch.agent_interface import AgentLink, Reattach
from torchyard_core.launch.runs.logs import LogReader
from torchyard_core.text_sanitizer import one_line

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")
RETRY_S = 2.0
LOOK_S = 2.0
"""Interval of looking for new logs."""

Readers = Callable[[], Sequence[LogReader]]


@dataclass
class LinePrinter:
    """Prints lines of logs, each after its replica's name where there are several."""

    several: bool
    as_json: bool
    raw: bool = False
    """Prints control characters on a terminal, too."""
    _colours: dict[str, str] = field(default_factory=dict)

    def show(self, reader: LogReader, line: str) -> None:
        if self.as_json:
            print_json_line({"replica": reader.replica, "local_rank": reader.local_rank, "line": line})
            return
        prefix = ""
        if self.several or reader.local_rank:
            name = f"{reader.replica}.{reader.local_rank}" if reader.local_rank else reader.replica
            prefix = f"{self._coloured(one_line(name))} | "
        print_log_line(prefix, line, raw=self.raw)

    def _coloured(self, name: str) -> str:
        if not sys.stdout.isatty():
            return name
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return typer.style(name, fg=colour)


def print_logs(readers: Sequence[LogReader], printer: LinePrinter, tail: int | None) -> None:
    """Prints the logs as they are, one after the other. Raises AgentRefused or a HostError."""
    for reader in readers:
        if tail is not None:
            reader.skip_to_last(tail)
        for line in reader.lines(wait=False):
            printer.show(reader, line)
    sys.stdout.flush()


class FollowedLogs:
    """Follows several logs, each on a thread of its own, until all have ended."""

    def __init__(self, find: Readers, printer: LinePrinter, tail: int | None):
        """`find` returns a reader for each log that exists or is expected; it is called every LOOK_S seconds."""
        self._find = find
        self._printer = printer
        self._tail = tail
        self._news: queue.Queue[tuple[LogReader, str | TorchyardError | None]] = queue.Queue()
        self._known: set[tuple[str, int]] = set()
        self._open = 0
        self._lost: dict[LogReader, str] = {}
        """Readers whose host does not answer, with that host."""
        self._looked_at = float("-inf")

    def follow(self) -> None:
        """Prints until the end."""
        self._look()
        while self._open:
            try:
                reader, news = self._news.get(timeout=LOOK_S)
            except queue.Empty:
                self._look()
                continue
            self._take(reader, news)
            if self._news.empty():
                sys.stdout.flush()
            if not self._open or time.monotonic() - self._looked_at > LOOK_S:
                self._look()

    def _take(self, reader: LogReader, news: str | TorchyardError | None) -> None:
        """Handles a line, a temporary HostError, or the reader's end: None, or an AgentRefused."""
        if isinstance(news, str):
            self._lost.pop(reader, None)
            self._printer.show(reader, news)
        elif isinstance(news, HostError):
            if news.host not in self._lost.values():
                remark(f"torchyard: {news.sentence()} Trying again …")
            self._lost[reader] = news.host
        else:
            self._open -= 1
            if news is not None:
                remark(f"torchyard: {reader.replica}: {news.sentence()}")

    def _look(self) -> None:
        """Starts a reader for each new log."""
        self._looked_at = time.monotonic()
        try:
            found = self._find()
        except HostError:
            return  # the readers report the lost connection
        for reader in found:
            if (reader.replica, reader.local_rank) not in self._known:
                self._known.add((reader.replica, reader.local_rank))
                self._open += 1
                name = f"log-{reader.replica}.{reader.local_rank}"
                threading.Thread(target=self._read, args=(reader,), name=name, daemon=True).start()

    def _read(self, reader: LogReader) -> None:
        """Reads one log to its end; runs on the reader's thread."""
        tail = self._tail
        while not reader.ended:
            try:
                if tail is not None:
                    reader.skip_to_last(tail)
                    tail = None
                for line in reader.lines(wait=True):
                    self._news.put((reader, line))
            except AgentRefused as refusal:
                self._news.put((reader, refusal))
                return
            except HostError as error:
                self._news.put((reader, error))
                time.sleep(RETRY_S)
        self._news.put((reader, None))


LAST_LINES_S = 5.0
"""Time limit for the last lines of a run that is over."""


class ChiefLog:
    """Reads one replica's log on a thread of its own, and calls `show` with each line."""

    def __init__(self, run_id: str, replica: str, link: AgentLink, reattach: Reattach, show: Callable[[str], None]):
        self._reader = LogReader(run_id, replica, 0, link, reattach)
        self._show = show
        self._left = threading.Event()
        self._showing = threading.Lock()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._read, name=f"log-{replica}", daemon=True)

    def __enter__(self) -> ChiefLog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._left.is_set():
            self._thread.join(LAST_LINES_S)
        self.leave()

    def leave(self) -> None:
        """Shows no more lines; a line that is being shown is finished first."""
        self._left.set()
        with self._showing:
            pass

    def raise_failure(self) -> None:
        """Raises the OSError of a line that could not be written: the reader of our output has gone."""
        if self._failure is not None:
            raise self._failure

    def _read(self) -> None:
        while not self._left.is_set() and not self._reader.ended:
            try:
                for line in self._reader.lines(wait=True):
                    with self._showing:
                        if not self._left.is_set():
                            self._show(line)
            except OSError as error:
                self._failure = error
                return
            except TorchyardError:
                self._left.wait(RETRY_S)  # the follower reports the lost connection; the log continues where it was
