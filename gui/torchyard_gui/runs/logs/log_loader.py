"""Loads missing pages of the displayed logs, and appends new data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, Signal

from torchyard_core.errors import TorchyardError
from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.runs.logs.log_merge import MergedLog, Place
from torchyard_gui.runs.logs.log_search import LogMatches, LogSearch
from torchyard_gui.runs.logs.paged_log import BLOCK
from torchyard_gui.widgets.next_steps import error_text


class LogLoader(QObject):
    """Loads the pages of several logs. The caller must close the feeds."""

    grown = Signal()
    """Emitted when data has been appended."""
    filled = Signal()
    """Emitted when a requested page has arrived, or when a log no longer has a problem."""
    ended_changed = Signal()
    problem_changed = Signal(str)
    """Emitted with the current problem, or "" if there is none."""
    counted = Signal()
    """Emitted when the matches of a search have been counted."""

    def __init__(self, feeds: Sequence[LogFeed], names: Sequence[str], parent: QObject | None = None):
        super().__init__(parent)
        self.feeds = tuple(feeds)
        self.log = MergedLog({name: feed.times for name, feed in zip(names, feeds, strict=True)})
        self._asked: set[tuple[int, int]] = set()
        self._troubles: dict[int, str] = {}
        self._closed = False
        self._search: LogSearch | None = None
        self.matches: LogMatches | None = None
        """The matches of the last search, or None."""
        self._sources = [_Source(self, number, feed) for number, feed in enumerate(feeds)]

    @property
    def ended(self) -> bool:
        """Whether all logs are complete and cannot grow."""
        return all(feed.ended for feed in self.feeds)

    def close(self) -> None:
        """Stops the loader. No signal is emitted afterwards."""
        self._closed = True
        self.cancel_search()
        self.forget_matches()
        for source in self._sources:
            source.close()

    def ask(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Requests pages, given as (log number, offset). `filled` is emitted when a page arrives."""
        for number, offset in pieces:
            if (number, offset) not in self._asked:
                self._asked.add((number, offset))
                self.feeds[number].read(offset, BLOCK, self._taker(number, offset))

    def search(self, text: str, begin: Place, *, backwards: bool, done: Callable[[Place | None], None]) -> None:
        """Searches for the next match of a string. A search in progress is replaced.

        Args:
            done: Called with the place of the match, or with None if there is no match.
        """
        self.cancel_search()
        if self.matches is not None and self.matches.text == text:
            self.matches.advance()
        else:
            self.forget_matches()
            self.matches = LogMatches(self.log, self.feeds, text, self.counted.emit)
        self._search = LogSearch(self.log, self.feeds, text, begin, backwards=backwards, done=done)

    def forget_matches(self) -> None:
        if self.matches is not None:
            self.matches.cancel()
            self.matches = None

    def cancel_search(self) -> None:
        if self._search is not None:
            self._search.cancel()
            self._search = None

    def take(self, number: int, data: bytes, begin: int) -> None:
        """Appends new data to a log."""
        self.log.put(number, begin, data, self.feeds[number].size)
        self.grown.emit()

    def note(self, number: int, trouble: str) -> None:
        """Sets the problem of a log; "" removes it."""
        before = self._first_trouble()
        if trouble:
            self._troubles[number] = trouble
            self._asked = {asked for asked in self._asked if asked[0] != number}
        else:
            self._troubles.pop(number, None)
        if self._first_trouble() != before:
            self.problem_changed.emit(self._first_trouble())
        if not trouble:
            self.filled.emit()

    def _first_trouble(self) -> str:
        return next(iter(self._troubles.values()), "")

    def _taker(self, number: int, offset: int) -> Callable[[bytes, int], None]:
        def taken(data: bytes, size: int) -> None:
            self._asked.discard((number, offset))
            if data and not self._closed:
                self.log.put(number, offset, data, size)
                self.filled.emit()

        return taken


class _Source(QObject):
    """Connects the loader to the feed of one log."""

    def __init__(self, reading: LogLoader, number: int, feed: LogFeed):
        super().__init__(reading)
        self._reading = reading
        self._number = number
        self._feed = feed
        if feed.size:
            reading.log.put(number, 0, b"", feed.size)
        self._connections = [
            (feed.grown, self._grown),
            (feed.ended_changed, reading.ended_changed),
            (feed.lost, self._lost),
            (feed.failed, self._lost),
            (feed.found, self._found),
        ]
        for signal, slot in self._connections:
            signal.connect(slot)

    def close(self) -> None:
        for signal, slot in self._connections:
            signal.disconnect(slot)
        self._connections = []

    def _grown(self, data: bytes, begin: int) -> None:
        self._reading.take(self._number, data, begin)

    def _lost(self, error: TorchyardError) -> None:
        self._reading.note(self._number, error_text(error))

    def _found(self) -> None:
        self._reading.note(self._number, "")
