"""Limits the number of concurrent logins, because an sshd may drop connections beyond its MaxStartups (default 10)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE = 8
"""Maximum number of concurrent logins on one sshd.

From the eleventh concurrent login on, an sshd with the default MaxStartups (10:30:100) drops connections at random.
"""


class EarlyDrop(Exception):
    """Raised if an sshd closes the connection before the login, for example because of MaxStartups or a restart."""


class LoginGate:
    """Limits the number of concurrent logins on one sshd. A dropped connection lowers the limit."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._in_progress = 0
        self.limit = AT_ONCE

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Waits for a slot and holds it until the end of the `with` block.

        An EarlyDrop in the `with` block lowers the limit.
        """
        with self._free:
            self._free.wait_for(lambda: self._in_progress < self.limit)
            self._in_progress += 1
        try:
            yield
        except EarlyDrop:
            with self._free:
                self.limit = max(1, min(self.limit, self._in_progress) - 1)
            raise
        finally:
            with self._free:
                self._in_progress -= 1
                self._free.notify_all()


class LoginThrottle:
    """The login gates, one for each sshd.

    A key is a value of `Route.throttle_key`, or a string for a login by the system's ssh.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[object, LoginGate] = {}

    def __getitem__(self, key: object) -> LoginGate:
        with self._lock:
            return self._gates.setdefault(key, LoginGate())


class Backoff:
    """Exponential backoff with jitter.

    The first delay is at most `first_s` seconds, and no delay exceeds `most_s` seconds.
    """

    def __init__(self, first_s: float, most_s: float, chance: Callable[[], float] = random.random):
        self._first_s = first_s
        self._most_s = most_s
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """Counts a failure, and returns the delay in seconds before the next attempt.

        The delay is chosen at random between half the maximum and the maximum. The maximum doubles with each failure,
        up to `most_s`.
        """
        whole = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return whole * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """Resets the number of failures after a success."""
        self.failures = 0
