"""The results of a sweep: the table and the study on its primary, and their copies on this computer."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard_core.atomic_write import replace_content
from torchyard_core.errors import AgentRefused, HostError
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.sweeps.trial_table import SweepTable, read_table

FOLDER = "outputs/coordinator-0"
"""The coordinator's folder in the sweep's run."""
TABLE, STUDY = f"{FOLDER}/sweep.json", f"{FOLDER}/study-copy.sqlite3"
MAX_BYTES = 256 * 1024 * 1024
AGAIN_S = 0.2
TRIES = 10
"""Maximum number of attempts to read a file that the coordinator may replace in the meantime."""


@dataclass(frozen=True)
class SweepCopies:
    """The folder with copies of tables and studies, so that they can be shown when no host answers."""

    folder: Path

    def table(self, run_id: str) -> SweepTable | None:
        """Returns the last known table; None if there is none, or it is unreadable."""
        try:
            return read_table(json.loads((self.folder / f"{run_id}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            return None

    def study_file(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.sqlite3"

    def study(self, run_id: str) -> bytes | None:
        """Returns the last known study; None if there is none."""
        try:
            return self.study_file(run_id).read_bytes()
        except OSError:
            return None

    def update(self, run_id: str, link: AgentLink) -> SweepTable | None:
        """Copies the table and the study from the sweep's primary.

        Returns None if the coordinator has not written a table yet. Raises HostError, or OSError if a copy cannot be
        written.
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
                    time.sleep(AGAIN_S)  # The coordinator replaced the study in the meantime.
                    continue
                self._write_study(run_id, study)
            replace_content(self.folder / f"{run_id}.json", text.decode("utf-8") + "\n")
            return table
        raise HostError(link.host, f"the study of sweep {run_id} on {link.host} changes faster than it can be read.")

    def _write_study(self, run_id: str, study: bytes) -> None:
        """Replaces the copy of a study. A command and the window may do so at the same time."""
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
    """Returns a file of the run, or None if it does not exist. Raises HostError."""
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
