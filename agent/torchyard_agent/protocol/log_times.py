"""The times at which the bytes of a log were written.

They are derived from entries, each of which records the log's size at one time.
"""

from __future__ import annotations

Entry = tuple[int, float]
"""(size in bytes, seconds since 1970). The bytes between the previous entry's size and this size have this time."""
FINEST_S = 0.1
"""Interval in seconds at which the keeper checks the sizes of logs."""


def thin(entries: list[Entry], most: int) -> list[Entry]:
    """Reduces the number of entries to at most `most`.

    The newest `most // 2` entries are kept. Of the older entries, the last one in each time span is kept. The bytes of
    a removed entry get the time of the next entry that is kept, which is at most one span later.
    """
    newest = most // 2
    recent, older = entries[-newest:], entries[:-newest]
    span = FINEST_S
    while len(recent) + len(older) > most:
        span *= 2
        older = list({int(time // span): (size, time) for size, time in older}.values())
    return recent if not older else older + recent
