"""`torchyard runs logs`: what replicas printed, whole, its end, or as it comes."""

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
"""How often is looked whether a rank has begun a log."""

Readers = Callable[[], Sequence[LogReader]]


@dataclass
class LinePrinter:
    """Prints lines of logs: plain where there is one log, else each with its replica's name before it."""

    several: bool
    as_json: bool
    raw: bool = False
    """On a terminal too, lines as they were printed, with colours and whatever else they send to it."""
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
    """What is there now, one log after the other. Raises AgentRefused or a HostError."""
    for reader in readers:
        if tail is not None:
            reader.skip_to_last(tail)
        for line in reader.lines(wait=False):
            printer.show(reader, line)
    sys.stdout.flush()


class FollowedLogs:
    """Several logs as they grow, each read on a thread of its own, until every one of them has ended."""

    def __init__(self, find: Readers, printer: LinePrinter, tail: int | None):
        """`find` gives a reader for each log that there is, or will be; it is asked now and then."""
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
        """A line, a HostError that may pass, or what ended the reader: None, or an AgentRefused."""
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
        """Begins to read the logs that are new."""
        self._looked_at = time.monotonic()
        try:
            found = self._find()
        except HostError:
            return  # those that are read already tell about the connection
        for reader in found:
            if (reader.replica, reader.local_rank) not in self._known:
                self._known.add((reader.replica, reader.local_rank))
                self._open += 1
                name = f"log-{reader.replica}.{reader.local_rank}"
                threading.Thread(target=self._read, args=(reader,), name=name, daemon=True).start()

    def _read(self, reader: LogReader) -> None:
        """On the reader's thread: whatever `_take` takes, up to its end."""
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
"""How long the last lines may take once the run is over."""


class ChiefLog:
    """Reads one replica's log on a thread of its own and hands out its lines."""

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
        """Shows no more lines, and waits for none: the run goes on without us."""
        self._left.set()
        with self._showing:  # what is being shown just now comes before whatever the caller says next
            pass

    def raise_failure(self) -> None:
        """Raises the OSError that a line could not be shown for: nobody reads our output any more."""
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
                self._left.wait(RETRY_S)  # the follower tells about the connection; the log goes on where it was
