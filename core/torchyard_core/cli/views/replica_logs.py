"""Output of replicas' logs: whole logs, their last lines, or new lines as they are written."""

from __future__ import annotations

import heapq
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any

import typer

from torchyard_core.cli.output import print_json_line, print_log_line, remark
from torchyard_core.errors import AgentRefused, HostError, TorchyardError
from torchyard_core.formatting import utc_timestamp
from torchyard_core.launch.agent_interface import AgentLink, Reattach
from torchyard_core.launch.runs.known_runs import is_over
from torchyard_core.launch.runs.logs import LogLine, LogReader, merge_lines
from torchyard_core.text_sanitizer import one_line

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")
RETRY_S = 2.0
HOLD_S = 0.3
"""Time in seconds for which a new line is held back, since earlier lines of other logs may still arrive.

Hosts check logs every 0.1 s.
"""
LOOK_S = 2.0
"""Interval in seconds between two searches for new logs."""

Readers = Callable[[], Sequence[LogReader]]


@dataclass
class LinePrinter:
    """Prints lines of logs. Lines of several replicas, or of a local rank above 0, begin with the replica's name."""

    several: bool
    as_json: bool
    raw: bool = False
    """Whether control characters are printed even on a terminal."""
    timestamps: bool = False
    _colours: dict[str, str] = field(default_factory=dict)

    def show(self, reader: LogReader, line: LogLine) -> None:
        if self.as_json:
            printed = {"replica": reader.replica, "local_rank": reader.local_rank, "line": line.text}
            print_json_line({**printed, "time": utc_timestamp(line.time)} if self.timestamps else printed)
            return
        prefix = f"{utc_timestamp(line.time)} " if self.timestamps else ""
        if self.several or reader.local_rank:
            name = f"{reader.replica}.{reader.local_rank}" if reader.local_rank else reader.replica
            prefix += f"{self._coloured(one_line(name))} | "
        print_log_line(prefix, line.text, raw=self.raw)

    def _coloured(self, name: str) -> str:
        if not sys.stdout.isatty():
            return name
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return typer.style(name, fg=colour)


def print_logs(readers: Sequence[LogReader], printer: LinePrinter) -> None:
    """Prints the current content of the logs, merged by time.

    Raises AgentRefused or HostError if a log cannot be read.
    """
    for reader, line in merge_lines((reader, reader.lines(wait=False)) for reader in readers):
        printer.show(reader, line)
    sys.stdout.flush()


class FollowedLogs:
    """Prints several logs merged by time, and follows them until all have ended. Each log has its own thread."""

    def __init__(self, find: Readers, printer: LinePrinter):
        """Initializes the object without reading a log.

        `find` returns a reader for each log that exists or is expected. It is called about every LOOK_S seconds.
        """
        self._find = find
        self._printer = printer
        self._news: queue.Queue[tuple[LogReader, list[LogLine] | TorchyardError | None]] = queue.Queue()
        self._known: set[tuple[str, int]] = set()
        self._open = 0
        self._lost: dict[LogReader, str] = {}
        """The readers whose host does not answer, with the name of the host."""
        self._looked_at = float("-inf")
        self._held: list[tuple[float, int, LogReader, LogLine]] = []
        """A heap of lines that are held back, by time. The number keeps lines with equal times in order of arrival."""
        self._numbers = count()
        self._due: deque[tuple[float, float]] = deque()
        """For each group of held lines: the time until which they are held, and the latest time of a line."""
        self._printed_to = 0.0

    def follow(self) -> None:
        """Prints lines until all logs have ended."""
        found = self._look()
        for reader, line in merge_lines((reader, _past_lines(reader)) for reader in found):
            self._printer.show(reader, line)
        sys.stdout.flush()
        self._start(found)
        while self._open or self._held:
            wait_s = self._due[0][0] - time.monotonic() if self._due else LOOK_S
            with suppress(queue.Empty):
                self._take(*self._news.get(timeout=max(0.0, min(wait_s, LOOK_S))))
            self._print_due()
            if self._news.empty():
                sys.stdout.flush()
            if not self._open or time.monotonic() - self._looked_at > LOOK_S:
                self._start(self._look())

    def _hold(self, reader: LogReader, lines: list[LogLine]) -> None:
        for line in lines:
            heapq.heappush(self._held, (line.time, next(self._numbers), reader, line))
        self._due.append((time.monotonic() + (HOLD_S if self._open > 1 else 0.0), lines[-1].time))

    def _print_due(self) -> None:
        """Prints the lines that need not be held back any longer, and all lines that precede them."""
        while self._due and (self._due[0][0] <= time.monotonic() or not self._open):
            self._printed_to = max(self._printed_to, self._due.popleft()[1])
        while self._held and self._held[0][0] <= self._printed_to:
            _, _, reader, line = heapq.heappop(self._held)
            self._printer.show(reader, line)

    def _take(self, reader: LogReader, news: list[LogLine] | TorchyardError | None) -> None:
        """Handles a reader's item: lines, a HostError (temporary), None (the end) or an AgentRefused (the end)."""
        if isinstance(news, list):
            self._lost.pop(reader, None)
            self._hold(reader, news)
        elif isinstance(news, HostError):
            if news.host not in self._lost.values():
                remark(f"torchyard: {news.sentence()} Trying again …")
            self._lost[reader] = news.host
        else:
            self._open -= 1
            if news is not None:
                remark(f"torchyard: {reader.replica}: {news.sentence()}")

    def _look(self) -> list[LogReader]:
        """Returns the readers of new logs."""
        self._looked_at = time.monotonic()
        try:
            found = self._find()
        except HostError:
            return []  # The readers of the logs report the lost connection.
        new = []
        for reader in found:
            if (reader.replica, reader.local_rank) not in self._known:
                self._known.add((reader.replica, reader.local_rank))
                new.append(reader)
        return new

    def _start(self, readers: Sequence[LogReader]) -> None:
        """Starts a thread for each reader."""
        for reader in readers:
            self._open += 1
            name = f"log-{reader.replica}.{reader.local_rank}"
            threading.Thread(target=self._read, args=(reader,), name=name, daemon=True).start()

    def _read(self, reader: LogReader) -> None:
        """Reads a log to its end. Runs on the reader's thread."""
        while not reader.ended:
            try:
                if lines := list(reader.lines(wait=True)):
                    self._news.put((reader, lines))
            except AgentRefused as refusal:
                self._news.put((reader, refusal))
                return
            except HostError as error:
                self._news.put((reader, error))
                time.sleep(RETRY_S)
        self._news.put((reader, None))


def _past_lines(reader: LogReader) -> Iterator[LogLine]:
    """Yields the current lines of a log.

    An error ends the iteration. It is reported later, when the log is followed from its last line.
    """
    with suppress(TorchyardError):
        yield from reader.lines(wait=False)


LOOK_AT_STATE_S = 10.0
"""Interval in seconds at which the state of a followed run on a cluster is read, because its job may be requeued."""


class WaitingRemarks:
    """Remarks on stderr beside a run's logs: why the run waits, and how it ended if it ended while it waited."""

    def __init__(self, shown: dict[str, Any], show: Callable[[], dict[str, Any]]):
        """Prints a remark if the run waits. `shown` contains the details of the run, and `show` reads them again."""
        self._show = show
        self._shown = shown
        self._looked_at = time.monotonic()
        if self._waits:
            self._remark()

    def look(self) -> None:
        """Reads the run's state again if it may have changed between waiting and running. Raises HostError."""
        waited, reason = self._waits, self._shown["reason"]
        if not waited and (not self._shown["jobs"] or time.monotonic() - self._looked_at < LOOK_AT_STATE_S):
            return
        self._shown, self._looked_at = self._show(), time.monotonic()
        has_news = not waited or self._shown["reason"] != reason
        if (self._waits and has_news) or (waited and is_over(self._shown["state"])):
            self._remark()

    def finish(self) -> None:
        """Prints the end of a run that ended while it waited, if its end can be read."""
        if self._waits:
            with suppress(TorchyardError):
                self.look()

    @property
    def _waits(self) -> bool:
        return bool(self._shown["state"] == "waiting")

    def _remark(self) -> None:
        reason = f": {self._shown['reason']}" if self._shown["reason"] else ""
        remark(f"run {self._shown['run_id']} {self._shown['state']}{reason}")


LAST_LINES_S = 5.0
"""Time limit in seconds for reading the last log lines of a run that has ended."""


class ChiefLog:
    """Reads the log of a replica's first local rank on a separate thread, and calls `show` with each line."""

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
        """Ends the output after the line that is being shown, if any."""
        self._left.set()
        with self._showing:
            pass

    def raise_failure(self) -> None:
        """Raises the OSError of a failed write, if any.

        For example, a write fails after the program that reads the output has closed the pipe.
        """
        if self._failure is not None:
            raise self._failure

    def _read(self) -> None:
        while not self._left.is_set() and not self._reader.ended:
            try:
                for line in self._reader.lines(wait=True):
                    with self._showing:
                        if not self._left.is_set():
                            self._show(line.text)
            except OSError as error:
                self._failure = error
                return
            except TorchyardError:
                # The follower reports the lost connection, and the log continues from its last position.
                self._left.wait(RETRY_S)
