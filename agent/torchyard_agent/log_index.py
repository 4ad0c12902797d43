"""The index of a log, which records the log's size at several times: writer and reader.

The index is a file next to the log. Each line has `RECORD` bytes and contains a size of the log in bytes, and the time
in seconds since 1970 at which the log reached this size. Ranks write to their logs themselves, so the keeper cannot
record the time of each line. Instead, it records the log's size at intervals. The recorded time is the modification
time of the log, which is exact if the rank writes less often than the keeper checks the log.
"""

from __future__ import annotations

import contextlib
import os
import time

from torchyard_agent.protocol.log_times import Entry, thin

SUFFIX = ".times"
RECORD = 32
MOST_ENTRIES = 32_768
"""Maximum number of entries of an index (1 MB). When an index is full, at most half of its entries are kept."""


class LogIndexWriter:
    """The writer of the indexes of all logs in a folder."""

    def __init__(self, folder: str):
        self._folder = folder
        self._last: dict[str, tuple[int, Entry]] = {}
        """The number of entries and the last entry of each log."""

    def update(self) -> None:
        """Records the sizes of logs that have grown. If the disk is full, they are recorded by a later call."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as found:
            for entry in found:
                if entry.name.endswith(".log"):
                    with contextlib.suppress(OSError, ValueError):
                        self._note(entry.path, entry.stat())

    def _note(self, log: str, status: os.stat_result) -> None:
        count, last = self._last.get(log, (0, (0, 0.0)))
        if status.st_size < last[0]:  # The script has truncated its log.
            count, last = 0, (0, 0.0)
        if status.st_size > last[0]:
            if count >= MOST_ENTRIES:
                count = _compact(log)
            last = _present(last, status)
            file = os.open(log + SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if count else os.O_TRUNC), 0o600)
            try:
                if os.pwrite(file, _record(last), count * RECORD) < RECORD:
                    return  # The disk is full. The next entry will overwrite this incomplete one.
            finally:
                os.close(file)
            count += 1
        self._last[log] = count, last


def read_times(log: str, begin: int, end: int, status: os.stat_result, most: int) -> list[Entry]:
    """Returns at most `most` entries for the bytes of `log` from `begin` to `end`.

    The index may not cover the newest bytes yet. If the index is missing or damaged, it covers no bytes. Bytes that the
    index does not cover are assigned the time of the log's last change.

    Args:
        status: The result of os.stat() for the log.
    """
    if begin >= end:
        return []
    entries: list[Entry] = []
    with contextlib.suppress(OSError, ValueError), open(log + SUFFIX, "rb", buffering=0) as index:
        file = index.fileno()
        count = os.fstat(file).st_size // RECORD
        first = _first_above(file, begin, 0, count)
        last = _first_above(file, end - 1, first, count)
        entries = _parse(os.pread(file, (last + 1 - first) * RECORD, first * RECORD))
    if not entries or entries[-1][0] < end:
        entries.append(_present(entries[-1] if entries else (0, 0.0), status))
    return thin(entries, most)


def _present(last: Entry, status: os.stat_result) -> Entry:
    """Returns an entry for a log's current size.

    The entry's time is the log's modification time, which a script may set to any value. It is therefore limited to the
    range from the time of the previous entry, `last`, to now.
    """
    return status.st_size, max(last[1], min(status.st_mtime, time.time()))


def _compact(log: str) -> int:
    """Rewrites a log's index with at most half as many entries, and returns their number."""
    with open(log + SUFFIX, "rb") as file:
        entries = thin(_parse(file.read()), MOST_ENTRIES // 2)
    with open(log + SUFFIX + ".new", "wb") as file:
        file.write(b"".join(map(_record, entries)))
    os.rename(log + SUFFIX + ".new", log + SUFFIX)
    return len(entries)


def _record(entry: Entry) -> bytes:
    return b"%16d %14.3f\n" % entry


def _parse(data: bytes) -> list[Entry]:
    """Parses the complete records. Raises ValueError if a record is damaged, for example by a power failure."""
    entries = []
    for begin in range(0, len(data) - RECORD + 1, RECORD):
        size, seconds = data[begin : begin + RECORD].split()
        entries.append((int(size), float(seconds)))
    return entries


def _first_above(file: int, size: int, low: int, high: int) -> int:
    """Returns the number of the first entry whose size exceeds `size`, or `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        ((found, _),) = _parse(os.pread(file, RECORD, middle * RECORD))
        low, high = (low, middle) if found > size else (middle + 1, high)
    return low
