"""Pauses between attempts: growing, bounded, and spread by chance, so that many who failed together come back apart."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """How long to wait before the next attempt, in seconds: at first at most `first_s`, never over `most_s`."""

    def __init__(self, first_s: float, most_s: float, chance: Callable[[], float] = random.random):
        self._first_s = first_s
        self._most_s = most_s
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """The pause after one more failure: half of it certain, half by chance."""
        whole = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return whole * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """It worked: the next failure is a first one again."""
        self.failures = 0
