"""What this desktop launched: one JSON file a run, so that a later command knows where to ask."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchyard_agent.protocol.metrics_report import kept


@dataclass(frozen=True)
class RunRecord:
    """One run as this desktop last knew it. Times are RFC 3339, UTC."""

    run_id: str
    name: str
    topology_file: str
    primary: str
    """The chief's host, whose keeper has the whole run's journal."""
    hosts: tuple[str, ...]
    submitted: str
    state: str
    reason: str = ""
    as_of: str = ""
    ended: str = ""
    replicas: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    topology: str = ""
    """The topology's text as it was run."""
    snapshot: str | None = ""
    """Root hash of the code that was sent; None where none was, empty where an older version did not note it."""
    lineage: str = ""
    """The run that began at the first step, where it is not this one."""
    planned: list[dict[str, Any]] = field(default_factory=list)
    """Each replica's name, host and UUIDs of GPUs: what the window draws where no host can be asked any more."""
    restarted_from: str = ""
    """The run that this one goes on from, by its ID."""
    booking: str = ""
    """The booking that held its GPUs, by its ID."""
    is_confirmed: bool = True
    """False: its primary was asked to start it, and could not be asked any more whether it has."""

    @property
    def tells_what_ran(self) -> bool:
        """Whether the run can be launched again from this record alone, but for its code's files."""
        return bool(self.topology) and self.snapshot != ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class History:
    """The folder of run records. A record is written whole, beside its place, and renamed."""

    def __init__(self, folder: Path):
        self._folder = folder

    def save(self, record: RunRecord) -> None:
        """Raises OSError where the disk does not take it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._folder / f"{record.run_id}.json"
        scratch = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            scratch.write_text(json.dumps(record.to_json(), indent=1) + "\n", encoding="utf-8")
            scratch.replace(target)
        except OSError:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise

    def update(self, run_id: str, **changes: Any) -> None:
        """Changes fields of a record that this desktop has; a run of another desktop is not recorded here. Raises
        OSError."""
        record = self.load(run_id)
        if record is not None:
            self.save(replace(record, **changes))

    def remove(self, run_id: str) -> None:
        """Removes the record of a run, if there is one."""
        with suppress(OSError):
            (self._folder / f"{run_id}.json").unlink(missing_ok=True)

    def load(self, run_id: str) -> RunRecord | None:
        """The record, or None where there is none that can be read."""
        try:
            data = json.loads((self._folder / f"{run_id}.json").read_text(encoding="utf-8"))
            return RunRecord(**{**data, "hosts": tuple(data["hosts"])})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def records(self) -> list[RunRecord]:
        """All records, newest first (an ID begins with its time)."""
        found = (self.load(path.stem) for path in sorted(self._folder.glob("*.json"), reverse=True))
        return [record for record in found if record is not None]


def ending(event: dict[str, Any]) -> dict[str, Any]:
    """What `run_ended` changes in a record."""
    return {
        "state": event["state"],
        "reason": event["reason"],
        "as_of": event["time"],
        "ended": event["time"],
        "replicas": event["replicas"],
        "metrics": {name: kept(metrics) for name, metrics in event.get("metrics", {}).items()},
        "timings": event["timings"],
    }


def new_run_id(now: datetime | None = None) -> str:
    """As `20261123-091502-3f9c`, in UTC."""
    return f"{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
