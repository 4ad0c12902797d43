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
"""The shortest pause in seconds between two checks."""
LONG_PAUSE_S = 0.1
"""No pause is longer than this, except after a check that took longer."""

# A check that takes 10 ms, such as a search of /proc, would otherwise use half of a core for as long as the test waits.
# Four test processes share two cores.
PAUSE_PER_CHECK = 4
PAUSE_PER_WAIT = 0.05

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
        condition: Called repeatedly; it may be slow, because a pause is four times as long as the call before it, up
            to `LONG_PAUSE_S`, and never shorter than the call. Pauses also become longer the longer the wait lasts.
        within_s: Seconds after which the wait fails.
        what: Description for the error message; a function is called at the deadline and returns the current state.
        pause: Called with a number of seconds between two checks; a Qt program processes its events in this call.

    Raises:
        NotInTime: The condition did not become true in time.
    """
    start = time.monotonic()
    while True:
        asked = time.monotonic()
        if found := condition():
            return found
        answered = time.monotonic()
        if answered >= start + within_s:
            raise _not_in_time(within_s, what)
        pause(_pause(answered - asked, answered - start))


async def eventually(
    condition: Callable[[], Found | None], within_s: float = WITHIN_S, *, what: str | Callable[[], object] = ""
) -> Found:
    """Does the same as `wait_until` in a coroutine. Other tasks run between two checks."""
    start = time.monotonic()
    while True:
        asked = time.monotonic()
        if found := condition():
            return found
        answered = time.monotonic()
        if answered >= start + within_s:
            raise _not_in_time(within_s, what)
        await asyncio.sleep(_pause(answered - asked, answered - start))


def _pause(check_s: float, waited_s: float) -> float:
    """Returns the seconds until the next check, after a check of `check_s` and a wait of `waited_s` so far."""
    wanted = max(PAUSE_S, PAUSE_PER_CHECK * check_s, PAUSE_PER_WAIT * waited_s)
    return max(check_s, min(wanted, LONG_PAUSE_S))


def _not_in_time(within_s: float, what: str | Callable[[], object]) -> NotInTime:
    state = what() if callable(what) else what
    return NotInTime(f"not within {within_s:g} s" + (f": {state}" if state else ""))
