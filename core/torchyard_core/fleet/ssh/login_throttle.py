"""How many log in at once where all have to pass: an sshd drops what is over its MaxStartups (10, by default)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE = 8
"""Half-open logins at one sshd. From the eleventh on, the default MaxStartups (10:30:100) drops by chance."""


class EarlyDrop(Exception):
    """Raised where an sshd closes before a login begins: it has too many at once (MaxStartups), or it is starting."""


class LoginGate:
    """One sshd. It learns: an sshd that drops a login has shown how many it takes."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._inside = 0
        self.width = AT_ONCE
        """So many at once."""

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Waits for its turn, and holds it until the login is done. An EarlyDrop from within narrows the door."""
        with self._free:
            self._free.wait_for(lambda: self._inside < self.width)
            self._inside += 1
        try:
            yield
        except EarlyDrop:
            with self._free:
                self.width = max(1, min(self.width, self._inside) - 1)
            raise
        finally:
            with self._free:
                self._inside -= 1
                self._free.notify_all()


class Doors:
    """The doors that there are, by what stands for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doors: dict[object, LoginGate] = {}

    def __getitem__(self, place: object) -> LoginGate:
        with self._lock:
            return self._doors.setdefault(place, LoginGate())


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
