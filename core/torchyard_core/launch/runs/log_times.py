"""The times at which the bytes of a log were written, as recorded by the log's host."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from torchyard_agent.protocol.log_times import Entry, thin

MOST_ENTRIES = 16_384


class LogTimes:
    """The time at which each byte of a log was written, in seconds since 1970 by the host's clock. Never decreases."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._times: list[float] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries. An entry is ignored if its bytes already have a time.

        If there are then more than MOST_ENTRIES, older entries are merged.
        """
        for size, time in entries:
            if not self._sizes or size > self._sizes[-1]:
                self._sizes.append(size)
                self._times.append(max(time, self._times[-1]) if self._times else time)
        if len(self._sizes) > MOST_ENTRIES:
            kept = thin(list(zip(self._sizes, self._times, strict=True)), MOST_ENTRIES // 2)
            self._sizes, self._times = [size for size, _ in kept], [time for _, time in kept]

    def time(self, offset: int) -> float:
        """Returns the time at which the byte at `offset` was written.

        A byte after the last entry has the time of that entry. Without entries, the time is 0.
        """
        number = min(bisect_right(self._sizes, offset), len(self._times) - 1)
        return self._times[number] if self._times else 0.0

    def since(self, time: float) -> int | None:
        """Returns the offset of the first byte that was written at `time` or later, or None if there is none."""
        return self._begin(bisect_left(self._times, time))

    def after(self, time: float) -> int | None:
        """Returns the offset of the first byte that was written after `time`, or None if there is none."""
        return self._begin(bisect_right(self._times, time))

    def _begin(self, number: int) -> int | None:
        if number == len(self._times):
            return None
        return self._sizes[number - 1] if number else 0
