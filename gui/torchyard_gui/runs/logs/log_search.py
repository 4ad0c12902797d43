"""Search in logs, forwards or backwards, which reads their pages one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.runs.logs.log_merge import MergedLog, Place

PIECE = 512 * 1024


class LogSearch:
    """Search for the nearest match. `done` is called with the place of the match, or None.

    With several logs, the next page is always read from the log searched least far, until no log can contain a nearer
    match.
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
        """Starts a case-insensitive search: forwards from `begin`, or backwards for matches that end before `begin`."""
        self._log = log
        self._feeds = feeds
        self._needle = needle.encode().lower()
        self._backwards = backwards
        self._done = done
        self._cancelled = False
        self._best: Place | None = None
        self._at = {number: log.line_from(number, begin) for number in range(len(log))}
        """How far each unfinished log was searched."""
        self._step()

    def cancel(self) -> None:
        """Cancels the search without a call of `done`."""
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
