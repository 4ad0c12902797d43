"""Refused callers of a listening socket, counted: a flood of them must not fill a log."""

from __future__ import annotations

import threading
import time
from typing import Callable

EVERY_S = 60.0
"""One line about refused callers in so many seconds."""


class Refusals:
    """Counts refused callers of one listener. May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._unsaid = 0
        self._said_at = float("-inf")

    def note(self, sentence: str) -> str:
        """The line for the log about a refusal, at most one a minute; empty for one that is only counted."""
        with self._lock:
            self.count += 1
            now = self._clock()
            if now - self._said_at < EVERY_S:
                self._unsaid += 1
                return ""
            unsaid, self._unsaid, self._said_at = self._unsaid, 0, now
        return f"{sentence} ({unsaid} more since the last such line, {self.count} in all)" if unsaid else sentence
