"""A journal on disk, read as it grows: the one source of a run's state, for replay and for what comes next."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

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
