"""The run's journal: one JSON object a line, appended, never changed (its reader is `daemon.journal_file`)."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any, Callable

log = logging.getLogger(__name__)


def now() -> str:
    """This moment."""
    return at(time.time())


def at(seconds: float) -> str:
    """A time since 1970: RFC 3339, UTC, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


class Journal:
    """Appends whole lines and tells `on_growth`. A full disk delays lines and never ends a run."""

    def __init__(self, path: str, on_growth: Callable[[], None]):
        self.epoch = os.urandom(8).hex()
        self._seq = 0
        self._closed = False
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._unwritten = b""
        self._on_growth = on_growth

    def write(self, event: str, **fields: Any) -> None:
        """Nothing is written after `close`: the run's end is the last word."""
        if self._closed:
            return
        self._seq += 1
        entry = {"epoch": self.epoch, "seq": self._seq, "time": now(), "event": event, **fields}
        line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        # Half a character (a lone surrogate) becomes its JSON escape: what programs say is not always text.
        self._unwritten += line.encode("utf-8", "backslashreplace") + b"\n"
        self.flush()
        self._on_growth()

    def flush(self) -> None:
        """Writes what a full disk kept back."""
        while self._unwritten:
            try:
                written = os.write(self._file, self._unwritten)
            except OSError as error:
                log.warning("the journal cannot be written: %s", error)
                return
            self._unwritten = self._unwritten[written:]

    def close(self) -> None:
        """On the disk, not only in the kernel's memory, before anyone believes that the run has ended."""
        self.flush()
        self._closed = True
        try:
            os.fsync(self._file)
        except OSError as error:
            log.warning("the journal cannot be synced: %s", error)
        os.close(self._file)


_IN_EVERY_EVENT = ("epoch", "seq", "time", "event")


class JournalReader:
    """Hands out the whole lines that were written since it last looked."""

    def __init__(self, run_dir: str):
        self._path = os.path.join(run_dir, "journal.jsonl")
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New events in their order. A line that is still being written waits for the next look; one that a power cut
        has damaged (its end may be filled with zeros) is left out.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(_events(whole))


def _events(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and all(name in event for name in _IN_EVERY_EVENT):
            yield event


def after(events: list[dict[str, Any]], seen: list[Any] | None) -> list[dict[str, Any]]:
    """The events that a client, which last saw (epoch, sequence), has not seen; all of them for another epoch."""
    if not seen:
        return events
    for position, event in enumerate(events):
        if [event["epoch"], event["seq"]] == list(seen):
            return events[position + 1 :]
    return events
