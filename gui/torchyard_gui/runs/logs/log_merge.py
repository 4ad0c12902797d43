"""Merges logs by time. The logs may have any length, because only the required pages are loaded.

Times come from the hosts' clocks, so lines from different hosts are ordered only as accurately as their clocks agree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torchyard_core.launch.runs.log_times import LogTimes
from torchyard_gui.runs.logs.paged_log import KEPT, Line, MissingPage, PagedLog

Place = tuple[float, int, int]
"""The place where a line begins: (seconds since 1970, log number, byte offset). Places sort in the order of the merged
log.
"""

TOP: Place = (-1.0, -1, 0)
END: Place = (math.inf, -1, 0)
LEAST_KEPT = 3
"""Minimum number of blocks that are kept for each log, however many logs there are."""


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A line with the name of its log and its place in the merged log."""

    place: Place
    name: str
    line: Line

    @property
    def after(self) -> Place:
        """The place directly after the line."""
        return (self.place[0], self.place[1], self.line.end)


class MissingPages(Exception):
    """Raised if pages must be loaded first. `pieces` contains the missing pages as (log number, offset)."""

    def __init__(self, pieces: list[tuple[int, int]]):
        super().__init__(pieces)
        self.pieces = pieces


@dataclass
class _Log:
    name: str
    pieces: PagedLog
    times: LogTimes


class MergedLog:
    """Several logs, merged by time. Each log has a number."""

    def __init__(self, times: Mapping[str, LogTimes] | None = None):
        """Creates the merged log without loaded pages.

        Args:
            times: Times of the lines in each log, by the name of the log. Each LogTimes is updated while its log grows.
        """
        times = times or {}
        kept = max(LEAST_KEPT, KEPT // max(1, len(times)))
        self._logs = [_Log(name, PagedLog(kept), of_log) for name, of_log in times.items()]

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def names(self) -> list[str]:
        return [log.name for log in self._logs]

    @property
    def size(self) -> int:
        """The total number of bytes in all logs."""
        return sum(log.pieces.size for log in self._logs)

    def put(self, number: int, offset: int, data: bytes, size: int) -> None:
        """Adds new data or a requested page of a log. `size` is the current number of bytes in the log."""
        self._logs[number].pieces.put(offset, data, size)

    def place(self, number: int, offset: int) -> Place:
        return (self._logs[number].times.time(offset), number, offset)

    def offset(self, number: int, place: Place) -> int:
        """Returns the offset of a log's first byte that is at or after a place of the merged log."""
        when, whose, at = place
        log = self._logs[number]
        if number == whose:
            return min(at, log.pieces.size)
        found = log.times.since(when) if number > whose else log.times.after(when)
        return log.pieces.size if found is None else min(found, log.pieces.size)

    def line_from(self, number: int, place: Place) -> int:
        """Returns the offset of a log's first line that is at or after a place of the merged log.

        If the page in which the line begins is not loaded, this is the offset of a byte within the line.
        """
        try:
            first = self._first(number, place)
        except MissingPage:
            return self.offset(number, place)
        return self._logs[number].pieces.size if first is None else first

    def lines(self, place: Place, count: int) -> list[PlacedLine]:
        """Returns at most `count` lines that begin at or after a place.

        Raises MissingPages if pages must be loaded first.
        """
        heads = [self.place(number, begin) for number, begin in self._each(self._first, place) if begin is not None]
        heapq.heapify(heads)
        found: list[PlacedLine] = []
        while heads and len(found) < count:
            head = heapq.heappop(heads)
            number, log = head[1], self._logs[head[1]]
            with _of(number):
                (line,) = log.pieces.lines(head[2], 1)
            found.append(PlacedLine(head, log.name, line))
            if line.end < log.pieces.size:
                heapq.heappush(heads, self.place(number, line.end))
        return found

    def back(self, place: Place, count: int) -> Place:
        """Returns the place `count` lines before a place, or the place of the first line if there are fewer lines.

        Raises MissingPages if pages must be loaded first.
        """
        before = [self._before(number, begin) for number, begin in self._each(self._last, place) if begin is not None]
        heapq.heapify(before)
        for _ in range(count):
            if not before:
                break
            when, number, begin = (-part for part in heapq.heappop(before))
            place = (when, int(number), int(begin))
            if begin > 0:
                with _of(place[1]):
                    heapq.heappush(
                        before, self._before(place[1], self._logs[place[1]].pieces.begin_of_line(place[2] - 1))
                    )
        return place

    def last_page(self, count: int) -> Place:
        """Returns the place at which the last `count` lines begin.

        Raises MissingPages if pages must be loaded first.
        """
        return self.back(END, count)

    def line_with(self, number: int, offset: int) -> Place:
        """Returns the place of the line that contains the byte at `offset` of a log.

        Raises MissingPages if pages must be loaded first.
        """
        with _of(number):
            return self.place(number, self._logs[number].pieces.begin_of_line(offset))

    def share(self, place: Place) -> float:
        """Returns the fraction of all bytes that are before a place."""
        return sum(self.offset(number, place) for number in range(len(self))) / max(1, self.size)

    def near(self, share: float) -> Place:
        """Returns the place of a line that has about the fraction `share` of all bytes before it.

        Raises MissingPages if pages must be loaded first.
        """
        wanted = share * self.size
        logs = [log.times for log in self._logs]
        low = min((times.time(0) for times in logs), default=0.0)
        high = max((times.time(log.pieces.size) for times, log in zip(logs, self._logs, strict=True)), default=0.0)
        for _ in range(64):
            middle = (low + high) / 2
            if self._bytes_before(middle) <= wanted:
                low = middle
            else:
                high = middle
        # The log index has a single time for all bytes of an entry, so the wanted byte may lie in the middle of an
        # entry, which a search by time alone cannot find.
        when = min((times.time(begin) for times in logs if (begin := times.since(low)) is not None), default=low)
        left = wanted - self._bytes_before(when)
        for number, log in enumerate(self._logs):
            begin = self.offset(number, (when, -1, 0))
            end = log.times.after(when)
            length = (log.pieces.size if end is None else end) - begin
            if left < length:
                return self.line_with(number, begin + int(left))
            left -= max(0, length)
        return (when, -1, 0)

    def _bytes_before(self, when: float) -> int:
        return sum(self.offset(number, (when, -1, 0)) for number in range(len(self)))

    def _before(self, number: int, begin: int) -> tuple[float, int, int]:
        when, _, _ = self.place(number, begin)
        return (-when, -number, -begin)

    def _first(self, number: int, place: Place) -> int | None:
        """Returns the offset of a log's first line that is at or after a place, or None if there is none."""
        pieces, offset = self._logs[number].pieces, self.offset(number, place)
        if offset >= pieces.size:
            return None
        if number == place[1]:
            return offset
        begin = pieces.begin_of_line(offset)
        if begin < offset:
            begin = pieces.lines(begin, 1)[0].end
        return begin if begin < pieces.size else None

    def _last(self, number: int, place: Place) -> int | None:
        """Returns the offset of a log's last line that is before a place, or None if there is none."""
        first = self._first(number, place)
        pieces = self._logs[number].pieces
        end = pieces.size if first is None else first
        return pieces.begin_of_line(end - 1) if end > 0 else None

    def _each(self, find: Callable[[int, Place], int | None], place: Place) -> list[tuple[int, int | None]]:
        """Calls `find` for each log. If pages are missing, raises a single MissingPages for all logs."""
        found, missing = [], []
        for number in range(len(self)):
            try:
                found.append((number, find(number, place)))
            except MissingPage as piece:
                missing.append((number, piece.offset))
        if missing:
            raise MissingPages(missing)
        return found


@contextmanager
def _of(number: int) -> Iterator[None]:
    """Converts a MissingPage to MissingPages, which contains the number of the log."""
    try:
        yield
    except MissingPage as piece:
        raise MissingPages([(number, piece.offset)]) from None
