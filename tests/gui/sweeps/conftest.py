"""Fixtures of the Sweeps page, with a simulated sweep on two hosts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from PySide6.QtWidgets import QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot
from tools.sample_sweep import LIVE, TOPOLOGY, sweep_data

from tests.gui.runs.fake_hosts import Acting, ActingLink, close, runs_model
from tests.gui.theme_fixture import without_theme
from torchyard_core.errors import AgentRefused
from torchyard_core.home import Home
from torchyard_core.launch.runs.sweep_results import TABLE
from torchyard_core.topology.file import topology_from_text
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.sweeps.page import SweepsPage

STUDY_CONTENT = b"an SQLite file"


class ActingSweep(Acting):
    """A simulated sweep; `data` is its coordinator's table, and None before the coordinator has written it."""

    def __init__(self) -> None:
        design = topology_from_text(TOPOLOGY, "digits.yaml").topology
        super().__init__(name="digits-search", run_id=LIVE, design=design)
        self.data: dict[str, Any] | None = sweep_data(LIVE, ["gpu-a", "gpu-b"])

    def answer(self, link: ActingLink, method: str, params: dict[str, Any]) -> Any:
        if method == "run.list":
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
        return {**super()._record(), "sweep": "version: 1\n"}

    def _trial_lines(self, host: str) -> list[dict[str, Any]]:
        """Returns the entries that `run.list` has for the running trials of a host."""
        trials = self.data["trials"] if self.data is not None else []
        record = {"primary": host, "hosts": [host], "sweep_run": LIVE}
        return [
            {**self._line(), "run_id": trial["run_id"], "state": "running", "record": record}
            for trial in trials
            if trial["state"] == "running" and trial["hosts"] == [host]
        ]


@pytest.fixture
def acting(home: Home) -> ActingSweep:
    """Returns a live sweep that this computer has started."""
    sweep = ActingSweep()
    sweep.note(home, sweep="version: 1\n")
    sweep.start()
    return sweep


@pytest.fixture
def page(qtbot: QtBot, home: Home, acting: ActingSweep) -> Iterator[SweepsPage]:
    """Returns a visible page with the trials of the live sweep."""
    with without_theme():
        runs = runs_model(home, acting)
        model = SweepsModel(runs, runs)
        page = SweepsPage(model)
        window = QWidget()
        layout = QVBoxLayout(window)
        layout.addWidget(page.bar)
        layout.addWidget(page, 1)
    qtbot.addWidget(window)
    window.resize(1100, 800)
    window.show()
    with qtbot.waitActive(window):
        window.activateWindow()
    page.list.setFocus()
    if acting.data is not None:
        qtbot.waitUntil(lambda: page.table.trials.rowCount() == len((acting.data or {})["trials"]))
        qtbot.waitUntil(lambda: bool(page.sweep and page.sweep.is_fresh))
    yield page
    page.close_page()
    close(runs)
