"""In which order the lines of several logs stand: logs carry no times, so by when their bytes came here.

What was there when the logs were opened is laid beside each other by its position: halfway through one log stands by
halfway through another. What comes later stands where it came, so a log that is followed grows at its end only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MOST_STEPS = 4096
"""Of one log; older ones are then told apart half as well."""


class Arrivals:
    """A clock for one log's bytes: 0 to 1 over what was there at first, then the number of the burst they came in."""

    def __init__(self) -> None:
        self._old = 0
        self._offsets: list[int] = []
        self._times: list[float] = []
        self.has_begun = False

    def begin(self, size: int) -> None:
        """So many bytes were there at first."""
        self._old = size
        self.has_begun = True

    def grow(self, offset: int, time: float) -> None:
        """What follows from `offset` came in burst `time`, above 1; the last one may go on."""
        if self._times and time <= self._times[-1]:
            return
        self._offsets.append(offset)
        self._times.append(time)
        if len(self._times) > MOST_STEPS:
            half = MOST_STEPS // 2
            self._offsets[:half] = self._offsets[:half:2]
            self._times[:half] = self._times[:half:2]

    def time(self, offset: int) -> float:
        """When the byte at `offset` came."""
        if offset < self._old:
            return offset / self._old
        number = bisect_right(self._offsets, offset) - 1
        return self._times[number] if number >= 0 else 1.0

    def since(self, time: float) -> int | None:
        """The first byte that came at `time` or later; None for none so far."""
        if time < 1:
            offset = max(0, int(time * self._old) - 1)
            while offset < self._old and offset / self._old < time:
                offset += 1
            if offset < self._old:
                return offset
        return self._step(bisect_left(self._times, time))

    def after(self, time: float) -> int | None:
        """The first byte that came later than `time`."""
        if time < 1:
            offset = max(0, int(time * self._old) - 1)
            while offset < self._old and offset / self._old <= time:
                offset += 1
            if offset < self._old:
                return offset
        return self._step(bisect_right(self._times, time))

    def _step(self, number: int) -> int | None:
        return self._offsets[number] if number < len(self._offsets) else None
