"""Tests of the facts about an exchange that come from the history, measured bandwidths and the fleet file."""

from __future__ import annotations

import json
from pathlib import Path

from pytestqt.qtbot import QtBot

from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.planner.exchange_facts import ExchangeSource

FLEET = """\
version: 1
hosts:
  - {name: a, bandwidth_gbps: 10}
  - {name: b, bandwidth_gbps: 25}
  - {name: c}
"""


def test_a_measured_link_has_precedence_over_the_fleet_file(qtbot: QtBot, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.fleet_file.write_text(FLEET)
    fleet = FleetModel(home, home.fleet_file)
    source = ExchangeSource(fleet)
    assert source.facts("net", ["a", "b"]) == ExchangeFacts(None, 1.25e9)
    assert source.facts("net", ["a", "c"]) == ExchangeFacts(None, None), "the link of c is unknown"
    home.caches.mkdir()
    (home.caches / "bandwidth.json").write_text(json.dumps({"a@x|b@y": {"bytes_s": 5e8, "at": 1.0}}))
    assert source.facts("net", ["a", "b"]).link_bytes_s == 5e8
    fleet.close()
    fleet.deleteLater()


def test_the_size_of_gradients_is_read_again_after_a_run(qtbot: QtBot, tmp_path: Path) -> None:
    home = Home(tmp_path)
    fleet = FleetModel(home, home.fleet_file)
    source = ExchangeSource(fleet)
    assert source.facts("net", []).gradient_bytes is None
    metrics = {"worker-0": {"gradient_bytes": 4e6}}
    History(home.history).save(RunRecord("r", "net", "", "a", ("a",), "2026-01-01T00:00:00Z", "ended", metrics=metrics))
    assert source.facts("net", []).gradient_bytes is None
    source.forget()
    assert source.facts("net", []).gradient_bytes == 4e6
    fleet.close()
    fleet.deleteLater()
