"""The times at which the bytes of a log were written.

These times are derived from the entries of a log index, each of which records the log's size at one time.
"""

from __future__ import annotations

Entry = tuple[int, float]
"""An entry of a log index: the log's size in bytes, and a time in seconds since 1970.

The time applies to all bytes between the size in the previous entry and the size in this entry.
"""
FINEST_S = 0.1
"""Interval in seconds at which the keeper checks the sizes of logs."""


def thin(entries: list[Entry], most: int) -> list[Entry]:
    """Reduces the number of entries to at most `most`.

    The newest `most // 2` entries are kept. Of the older entries, the last one in each time span is kept. The bytes of
    a removed entry are assigned the time of the next entry that is kept, which is at most one span later.
    """
    newest = most // 2
    recent, older = entries[-newest:], entries[:-newest]
    span = FINEST_S
    while len(recent) + len(older) > most:
        span *= 2
        older = list({int(time // span): (size, time) for size, time in older}.values())
    return recent if not older else older + recent
