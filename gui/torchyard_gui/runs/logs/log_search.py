"""Searches logs forwards or backwards, and counts matches, by reading the logs' pages one after another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.runs.logs.log_merge import MergedLog, Place

PIECE = 512 * 1024
MOST_READ = 64 * 1024 * 1024
"""Maximum total number of bytes of all logs in which matches are counted. A search for the next match has no such
limit.
"""


class LogSearch:
    """Searches for the nearest match. `done` is called with the place of the match, or with None if there is no match.

    With several logs, the next page is always read from the log in which the search has progressed least, until no log
    can contain a nearer match.
    """

    def __init__(
        self,
        log: MergedLog,
        feeds: Sequence[LogFeed],
        needle: str,
        begin: Place,
        *,
        backwards: bool,
        done: Callable[[Place | None], None],
    ):
        """Starts a search that ignores the case of ASCII letters. The search runs forwards from `begin`, or backwards
        over matches that end before `begin`.
        """
        self._log = log
        self._feeds = feeds
        self._needle = needle.encode().lower()
        self._backwards = backwards
        self._done = done
        self._cancelled = False
        self._best: Place | None = None
        self._at = {number: log.line_from(number, begin) for number in range(len(log))}
        """The byte offset up to which each unfinished log has been searched."""
        self._step()

    def cancel(self) -> None:
        """Cancels the search without calling `done`."""
        self._cancelled = True

    def _step(self) -> None:
        fronts = {number: self._log.place(number, at) for number, at in self._at.items() if self._has_more(number, at)}
        if not fronts:
            self._done(self._best)
            return
        if self._backwards:
            number, front = max(fronts.items(), key=lambda item: item[1])
            nearer = self._best is None or front > self._best
        else:
            number, front = min(fronts.items(), key=lambda item: item[1])
            nearer = self._best is None or front < self._best
        if not nearer:
            self._done(self._best)
            return
        at = self._at[number]
        low = max(0, at - PIECE) if self._backwards else at
        limit = at - low if self._backwards else PIECE
        self._feeds[number].read(low, limit, lambda data, size: self._took(number, low, data, size))

    def _has_more(self, number: int, at: int) -> bool:
        return at > 0 if self._backwards else at < self._feeds[number].size

    def _took(self, number: int, low: int, data: bytes, size: int) -> None:
        if self._cancelled:
            return
        lowered = data.lower()
        found = lowered.rfind(self._needle) if self._backwards else lowered.find(self._needle)
        overlap = len(self._needle) - 1
        if found >= 0:
            place = self._log.place(number, low + found)
            nearest = max if self._backwards else min
            self._best = place if self._best is None else nearest(self._best, place)
            del self._at[number]
        elif self._backwards:
            self._at[number] = low + overlap if low else 0
        elif not data or low + len(data) >= size:
            del self._at[number]
        else:
            self._at[number] = low + len(data) - overlap
        self._step()


class LogMatches:
    """Counts the lines that contain a string, in the first MOST_READ bytes of the logs. `advance` counts new lines."""

    def __init__(self, log: MergedLog, feeds: Sequence[LogFeed], text: str, changed: Callable[[], None]):
        """Starts counting. `changed` is called at the end of each count."""
        self.text = text
        self._log = log
        self._feeds = feeds
        self._needle = text.encode().lower()
        self._changed = changed
        self._found: list[list[int]] = [[] for _ in feeds]
        """Offset of the first match of each matching line, by log."""
        self._read = [0] * len(feeds)
        self._rest = [b""] * len(feeds)
        """The incomplete line at the end of the data that was read, by log."""
        self._busy = False
        self._cancelled = False
        self.advance()

    @property
    def is_complete(self) -> bool:
        """Whether the logs have been read to their ends."""
        return all(read >= feed.size for read, feed in zip(self._read, self._feeds, strict=True))

    @property
    def is_counting(self) -> bool:
        return self._busy

    @property
    def total(self) -> int:
        return sum(map(len, self._found))

    def number_of(self, line: Place) -> int:
        """Returns the number of the match in the line at this place, counted from 1, or 0 if the match has not been
        counted.
        """
        whose, begin = line[1], line[2]
        before = sum(bisect_left(found, self._log.offset(number, line)) for number, found in enumerate(self._found))
        is_counted = bisect_left(self._found[whose], begin) < len(self._found[whose])
        return before + 1 if is_counted else 0

    def advance(self) -> None:
        """Counts the matches in data that has been appended to the logs since the last count."""
        if not self._busy:
            self._busy = True
            self._step()

    def cancel(self) -> None:
        """Cancels the count without calling `changed`."""
        self._cancelled = True

    def _step(self) -> None:
        left = [number for number, feed in enumerate(self._feeds) if self._read[number] < feed.size]
        if not left or sum(self._read) >= MOST_READ:
            self._busy = False
            self._changed()
            return
        number = left[0]
        low = self._read[number]
        self._feeds[number].read(low, PIECE, lambda data, size: self._took(number, low, data, size))

    def _took(self, number: int, low: int, data: bytes, size: int) -> None:
        if self._cancelled:
            return
        if not data:  # The log is shorter than the host reported.
            self._busy = False
            self._changed()
            return
        rest = self._rest[number]
        buffer, begin = rest + data.lower(), low - len(rest)
        self._read[number] = low + len(data)
        ends = self._read[number] >= size
        cut = len(buffer) if ends or len(buffer) > 2 * PIECE else buffer.rfind(b"\n") + 1
        at = 0
        while (found := buffer.find(self._needle, at, cut)) >= 0:
            if not self._found[number] or begin + found > self._found[number][-1]:
                self._found[number].append(begin + found)
            newline = buffer.find(b"\n", found, cut)
            at = newline + 1 if newline >= 0 else cut
        # The last line may still grow, so it is searched again later, but it must be counted only once.
        self._rest[number] = buffer[buffer.rfind(b"\n") + 1 :] if ends else buffer[cut:]
        self._step()
