"""The run's journal: one JSON object a line, appended, never changed (its reader is `daemon.journal_file`)."""

from __future__ import annotations

import json
import logging
import os
import time
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
