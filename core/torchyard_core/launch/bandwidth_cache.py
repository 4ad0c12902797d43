"""The measured bandwidth between hosts, kept in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem

Pair = tuple[str, str]


@dataclass(frozen=True)
class Measurement:
    """The measured bandwidth between two hosts."""

    pair: Pair
    bytes_s: float | None
    """Bytes per second in the slower direction; None if never measured."""
    at: float = 0.0
    """The time at which the bandwidth was measured, in seconds since 1970."""
    why_old: str = ""
    """The reason why a measurement that was due did not take place. Empty if it took place, or if none was due."""


class BandwidthCache:
    """Measurements of earlier launches, kept in a JSON file. If there is no file, nothing is cached."""

    def __init__(self, file: Path | None):
        self._file = file
        self._known: dict[str, Any] = {}
        with suppress(OSError, ValueError, RecursionError):
            known = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
            self._known = known if isinstance(known, dict) else {}

    def of(self, pair: Pair, key: str) -> Measurement:
        """Returns the last measurement of a pair. If there is none, the result's `bytes_s` is None.

        `key` contains the names and addresses of both hosts.
        """
        entry: Any = self._known.get(key)
        try:
            return Measurement(pair, float(entry["bytes_s"]), float(entry["at"]))
        except (TypeError, KeyError, ValueError, OverflowError):
            return Measurement(pair, None)

    def all_pairs(self) -> dict[Pair, float]:
        """Returns the known bandwidths in bytes per second by pair of host names."""
        found = {}
        for key in self._known:
            names = [end.partition("@")[0] for end in key.split("|")]
            figure = self.of((names[0], names[-1]), key)
            if len(names) == 2 and figure.bytes_s:
                found[names[0], names[1]] = figure.bytes_s
        return found

    def slowest(self, hosts: Collection[str]) -> float | None:
        """Returns the lowest known bandwidth between any two of these hosts, in bytes per second.

        Returns None if no bandwidth between them is known.
        """
        wanted = set(hosts)
        return min((rate for pair, rate in self.all_pairs().items() if wanted.issuperset(pair)), default=None)

    def keep(self, figures: Mapping[str, Measurement]) -> None:
        """Adds measurements to the file. Errors are ignored, since the file is only a cache."""
        if self._file is None or not figures:
            return
        self._known |= {key: {"bytes_s": round(f.bytes_s or 0), "at": round(f.at, 3)} for key, f in figures.items()}
        with suppress(FileProblem):
            write_atomically(self._file, json.dumps(self._known, indent=1) + "\n", 0o600)
