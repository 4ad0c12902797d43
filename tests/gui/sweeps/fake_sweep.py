"""A simulated sweep on simulated hosts."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from tools.sample_sweep import LIVE, TOPOLOGY, sweep_data

from tests.core.examples import host
from tests.gui.runs.fake_hosts import Acting, ActingLink
from torchyard_core.errors import AgentRefused
from torchyard_core.home import Home
from torchyard_core.launch.runs.sweep_copies import TABLE
from torchyard_core.topology.file import topology_from_text

SEARCH = "version: 1\n"
STUDY_CONTENT = b"an SQLite file"


class ActingSweep(Acting):
    """A simulated sweep; `data` is its coordinator's table, and None before the coordinator has written it."""

    def __init__(self, run_id: str = LIVE, hosts: Sequence[str] = ("gpu-a", "gpu-b"), count: int = 38) -> None:
        """Creates a live sweep with `count` trials, two of which are running."""
        design = topology_from_text(TOPOLOGY, "digits.yaml").topology
        super().__init__([host(name, 2) for name in hosts], name="digits-search", run_id=run_id, design=design)
        self.data: dict[str, Any] | None = sweep_data(run_id, list(hosts), count)

    def note_sweep(self, home: Home) -> None:
        """Writes the record of the desktop that started the sweep."""
        self.note(home, sweep=SEARCH)

    def stop(self) -> None:
        """Ends the sweep, and with it the trials that are running."""
        assert self.data is not None
        self.data = sweep_data(self.run_id, list(self.links), len(self.data["trials"]), state="stopped")
        self.end("stopped", "stopped by kim")

    def answer(self, link: ActingLink, method: str, params: dict[str, Any]) -> Any:
        if method == "run.list" and not self.is_forgotten:
            return [self._line(), *self._trial_lines(link.host)]
        if method == "files.read":
            has_study = self.data is not None and bool(self.data["study"])
            if self.data is None or (params["path"] != TABLE and not has_study):
                raise AgentRefused(link.host, "the run has no such file", code="no_file")
            whole = json.dumps(self.data).encode() if params["path"] == TABLE else STUDY_CONTENT
            piece = whole[params["offset"] :]
            return {"data": base64.b64encode(piece).decode(), "next": len(whole), "size": len(whole)}
        return super().answer(link, method, params)

    def _record(self) -> dict[str, Any]:
        return {**super()._record(), "sweep": SEARCH}

    def _trial_lines(self, host: str) -> list[dict[str, Any]]:
        """Returns the lines of the trials that run on a host."""
        trials = self.data["trials"] if self.data is not None else []
        record = {"primary": host, "hosts": [host], "sweep_run": self.run_id}
        return [
            {**self._line(), "run_id": trial["run_id"], "state": "running", "record": record}
            for trial in trials
            if trial["state"] == "running" and trial["hosts"] == [host]
        ]
