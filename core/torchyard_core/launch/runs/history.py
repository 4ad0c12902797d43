"""History of the runs that this desktop has launched, with one JSON file per run."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from torchyard_agent.protocol.metrics_report import valid_metrics
from torchyard_core.atomic_write import replace_content


@dataclass(frozen=True)
class RunRecord:
    """The last state of a run that is known to this desktop. Times are RFC 3339 in UTC."""

    run_id: str
    name: str
    topology_file: str
    primary: str
    """The chief's host, whose keeper has the journal of the whole run."""
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
    """Text of the topology that was run."""
    snapshot: str | None = ""
    """Root hash of the code. None if the run has no code; empty in records of older versions."""
    code: str | None = ""
    """Hash of the program's files (`launch.snapshots.program_files.code_root`); None without code, empty if unknown."""
    lineage: str = ""
    """ID of the first run in the chain of restarts that led to this run; empty in records of older versions."""
    planned: list[dict[str, Any]] = field(default_factory=list)
    """Name, host and GPU UUIDs of each replica. The window draws the run from them if no host answers."""
    restarted_from: str = ""
    """ID of the ended run that this run restarts, or of the ended sweep that this sweep continues."""
    booking: str = ""
    """ID of the booking that held the run's GPUs."""
    sweep: str = ""
    """Text of the search file, if the run is a sweep."""
    workdir: str = ""
    """The working folder on this computer; empty in records of older versions and of restarts."""
    is_confirmed: bool = True
    """Whether the primary has confirmed that it started the run."""

    @property
    def tells_what_ran(self) -> bool:
        """Whether the record, together with the files of the code, is sufficient to restart the run."""
        return bool(self.topology) and self.snapshot != ""

    @property
    def code_root(self) -> str | None:
        """The hash of the program's files. If it is unknown, the hash of all files of the code."""
        return self.snapshot if self.code == "" else self.code

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class History:
    """The folder of run records, which are written atomically."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._updating = Lock()

    def save(self, record: RunRecord) -> None:
        """Writes a run record. Raises OSError if it cannot be written."""
        replace_content(self._folder / f"{record.run_id}.json", json.dumps(record.to_json(), indent=1) + "\n")

    def update(self, run_id: str, **changes: Any) -> None:
        """Changes fields of a record. Does nothing if there is none. Raises OSError if it cannot be written."""
        with self._updating:  # At the end of a run, several threads of the window change fields of its record.
            record = self.load(run_id)
            if record is not None:
                self.save(replace(record, **changes))

    def remove(self, run_id: str) -> None:
        """Removes the record of a run if it exists."""
        with suppress(OSError):
            (self._folder / f"{run_id}.json").unlink(missing_ok=True)

    def load(self, run_id: str) -> RunRecord | None:
        """Returns the record, or None if it is missing or unreadable."""
        try:
            data = json.loads((self._folder / f"{run_id}.json").read_text(encoding="utf-8"))
            return RunRecord(**{**data, "hosts": tuple(data["hosts"])})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def records(self) -> list[RunRecord]:
        """Returns all records, newest first."""
        found = (self.load(path.stem) for path in sorted(self._folder.glob("*.json"), reverse=True))
        return [record for record in found if record is not None]


def fields_at_end(event: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a record that change when the event `run_ended` arrives."""
    return {
        "state": event["state"],
        "reason": event["reason"],
        "as_of": event["time"],
        "ended": event["time"],
        "replicas": event["replicas"],
        "metrics": {name: valid_metrics(metrics) for name, metrics in event.get("metrics", {}).items()},
        "timings": event["timings"],
    }


def new_run_id(now: datetime | None = None) -> str:
    """Returns a new run ID such as `20261123-091502-3f9c`, which contains the time in UTC."""
    return f"{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
