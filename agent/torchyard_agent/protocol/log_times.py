"""The times of a log's bytes, as a list of entries that each record the log's size at one time."""

from __future__ import annotations

Entry = tuple[int, float]
"""(size in bytes, seconds since 1970): the bytes from the previous entry's size to this size have this time."""
FINEST_S = 0.1
"""Interval in seconds at which the keeper checks the sizes of logs."""


def thin(entries: list[Entry], most: int) -> list[Entry]:
    """Reduces the entries to at most `most`.

    The newest `most // 2` entries are kept and, of the older ones, the last in each span of time. A byte of a removed
    entry gets the time of the next kept entry, which is at most one span later.
    """
    newest = most // 2
    recent, older = entries[-newest:], entries[:-newest]
    span = FINEST_S
    while len(recent) + len(older) > most:
        span *= 2
        older = list({int(time // span): (size, time) for size, time in older}.values())
    return recent if not older else older + recent
