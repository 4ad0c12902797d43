"""Waits for conditions: `wait_until` blocks the thread, `eventually` leaves the event loop running.

Both check the condition until it is true, and fail with `NotInTime` at the deadline. Tests wait in this way for all
actions of other threads, processes and hosts; a test sleeps only if the passage of time is what it tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

WITHIN_S = 120.0
"""The default deadline in seconds. It is generous, so tests do not fail merely because the machine is busy."""
PAUSE_S = 0.005

Found = TypeVar("Found")


class NotInTime(AssertionError):
    """Raised when a condition does not become true before the deadline."""


def wait_until(
    condition: Callable[[], Found | None],
    within_s: float = WITHIN_S,
    *,
    what: str | Callable[[], object] = "",
    pause: Callable[[float], object] = time.sleep,
) -> Found:
    """Returns the condition's first true value.

    Args:
        condition: Called repeatedly; it may be slow, because the pauses are at least as long as the calls.
        within_s: Seconds after which the wait fails.
        what: Description for the error message; a function is called at the deadline and returns the current state.
        pause: Called with a number of seconds between two checks; a Qt program processes its events in this call.

    Raises:
        NotInTime: The condition did not become true in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        asked = time.monotonic()
        if found := condition():
            return found
        answered = time.monotonic()
        if answered >= deadline:
            raise _not_in_time(within_s, what)
        pause(max(PAUSE_S, answered - asked))


async def eventually(
    condition: Callable[[], Found | None], within_s: float = WITHIN_S, *, what: str | Callable[[], object] = ""
) -> Found:
    """Does the same as `wait_until` in a coroutine. Other tasks run between two checks."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() >= deadline:
            raise _not_in_time(within_s, what)
        await asyncio.sleep(PAUSE_S)
    return found


def _not_in_time(within_s: float, what: str | Callable[[], object]) -> NotInTime:
    state = what() if callable(what) else what
    return NotInTime(f"not within {within_s:g} s" + (f": {state}" if state else ""))
