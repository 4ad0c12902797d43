"""The results of a sweep: its table and study on the primary, and copies of both on this computer."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchyard_core.atomic_write import replace_content
from torchyard_core.errors import AgentRefused, HostError
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.sweeps.trial_table import SweepTable, read_table, table_without_trials

FOLDER = "outputs/coordinator-0"
"""The coordinator's folder in the sweep's run."""
TABLE, STUDY = f"{FOLDER}/sweep.json", f"{FOLDER}/study-copy.sqlite3"
MAX_BYTES = 256 * 1024 * 1024
AGAIN_S = 0.2
TRIES = 10
"""Maximum number of attempts to read the study, which the coordinator may replace during an attempt."""


@dataclass(frozen=True)
class SweepCopies:
    """The folder with copies of tables and studies. They are shown if no host answers."""

    folder: Path

    def table(self, run_id: str) -> SweepTable | None:
        """Returns the copy of a sweep's table, or None if there is no copy or the copy is unreadable."""
        try:
            return read_table(json.loads((self.folder / f"{run_id}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            return None

    def table_before_trials(
        self, run_id: str, name: str, run_state: str, search: str, continues: str
    ) -> SweepTable | None:
        """Returns the table of a sweep whose coordinator has not written one, because no trial has begun.

        Args:
            run_id: The ID of the sweep's run.
            name: The name of the sweep's run.
            run_state: The state of the sweep's run.
            search: The text of the sweep's search file. If it is unusable, None is returned.
            continues: The ID of the ended sweep that this sweep continues, or "". Its trials become part of the table.
        """
        # Imported only here, because most commands need no YAML parser.
        from torchyard_core.sweeps.search_file import search_in_record

        found, earlier = search_in_record(search), self.table(continues) if continues else None
        if found is None:
            return None
        table = table_without_trials(run_id, name, run_state, found)
        return table if earlier is None else replace(table, trials=earlier.trials, importances=earlier.importances)

    def study_file(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.sqlite3"

    def study(self, run_id: str) -> bytes | None:
        """Returns the copy of a sweep's study, or None if there is no copy."""
        try:
            return self.study_file(run_id).read_bytes()
        except OSError:
            return None

    @staticmethod
    def read_table(run_id: str, link: AgentLink) -> SweepTable | None:
        """Returns the table on the sweep's primary, or None if the coordinator has not written one yet. Makes no copy.

        Raises HostError if the host cannot be used.
        """
        text = _read(run_id, TABLE, link)
        return None if text is None else _table(text, link.host)

    def update(self, run_id: str, link: AgentLink) -> SweepTable | None:
        """Copies the table and the study from the sweep's primary, and returns the table.

        Returns None if the coordinator has not written a table yet. Raises HostError if the host cannot be used, and
        OSError if a copy cannot be written.
        """
        for _ in range(TRIES):
            text = _read(run_id, TABLE, link)
            if text is None:
                return None
            table = _table(text, link.host)
            known = self.study(run_id)
            if table.study and (known is None or hashlib.sha256(known).hexdigest() != table.study):
                study = _read(run_id, STUDY, link)
                if study is None or hashlib.sha256(study).hexdigest() != table.study:
                    time.sleep(AGAIN_S)  # The coordinator has replaced the study after writing this table.
                    continue
                self._write_study(run_id, study)
            replace_content(self.folder / f"{run_id}.json", text.decode("utf-8") + "\n")
            return table
        raise HostError(link.host, f"the study of sweep {run_id} on {link.host} changes faster than it can be read.")

    def _write_study(self, run_id: str, study: bytes) -> None:
        """Replaces the copy of a study atomically, since a command and the window may write it at the same time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / f"{run_id}.sqlite3.{secrets.token_hex(6)}.part"
        try:
            scratch.write_bytes(study)
            scratch.replace(self.study_file(run_id))
        finally:
            scratch.unlink(missing_ok=True)


def _table(text: bytes, host: str) -> SweepTable:
    try:
        data: Any = json.loads(text)
        return read_table(data)
    except (ValueError, RecursionError) as error:
        raise HostError(host, f"{host} sent a malformed table of the sweep: {error}.") from None


def _read(run_id: str, path: str, link: AgentLink) -> bytes | None:
    """Returns a file of the run, or None if it does not exist. Raises HostError if the host cannot be used."""
    content = b""
    while True:
        try:
            piece = link.call("files.read", {"run_id": run_id, "path": path, "offset": len(content)})
        except AgentRefused as refusal:
            if refusal.code == "no_file":
                return None
            raise
        try:
            data, size = base64.b64decode(piece["data"], validate=True), int(piece["size"])
        except (TypeError, KeyError, ValueError) as error:
            raise HostError(link.host, f"{link.host} sent malformed data of {path}: {error!r}.") from None
        content += data
        if not data or len(content) >= size:
            return content
        if len(content) > MAX_BYTES:
            raise HostError(link.host, f"{path} of run {run_id} is over the limit of {MAX_BYTES // 2**20} MB.")
