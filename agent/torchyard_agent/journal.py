"""The journal of a run: an append-only file of JSON lines, with its writer and its reader."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Any, Callable

from torchyard_agent.protocol import timestamps

log = logging.getLogger(__name__)


class Journal:
    """The writer of a journal. If the disk is full, writing is delayed, and the run continues.

    Args:
        on_growth: Called after each event.
    """

    def __init__(self, path: str, on_growth: Callable[[], None]):
        self.epoch = os.urandom(8).hex()
        self._seq = 0
        self._closed = False
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._unwritten = b""
        self._on_growth = on_growth

    def write(self, event: str, **fields: Any) -> None:
        """Appends an event. Has no effect after close()."""
        if self._closed:
            return
        self._seq += 1
        entry = {"epoch": self.epoch, "seq": self._seq, "time": timestamps.now(), "event": event, **fields}
        line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        # A lone surrogate is written as a JSON escape, because programs may output invalid text.
        self._unwritten += line.encode("utf-8", "backslashreplace") + b"\n"
        self.flush()
        self._on_growth()

    def flush(self) -> None:
        """Writes the events that are not in the file yet. If this fails, the events are kept for the next call."""
        while self._unwritten:
            try:
                written = os.write(self._file, self._unwritten)
            except OSError as error:
                log.warning("the journal cannot be written: %s", error)
                return
            self._unwritten = self._unwritten[written:]

    def close(self) -> None:
        """Syncs and closes the file. A power failure then cannot lose the end of a run that has been reported."""
        self.flush()
        self._closed = True
        try:
            os.fsync(self._file)
        except OSError as error:
            log.warning("the journal cannot be synced: %s", error)
        os.close(self._file)


_IN_EVERY_EVENT = ("epoch", "seq", "time", "event")


class JournalReader:
    """A reader that returns the events written since its last read."""

    def __init__(self, run_dir: str):
        self._path = os.path.join(run_dir, "journal.jsonl")
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Returns new events in order.

        An incomplete line is left for the next read. A line that a power failure has damaged or filled with zeros is
        skipped.
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
    """Returns the events that a client has not received yet.

    Args:
        seen: The (epoch, sequence) of the last event that the client has received. If `events` does not contain it, all
            events are returned.
    """
    if not seen:
        return events
    for position, event in enumerate(events):
        if [event["epoch"], event["seq"]] == list(seen):
            return events[position + 1 :]
    return events
