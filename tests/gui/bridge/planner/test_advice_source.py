"""Tests that advice is computed in a worker thread from this computer's profile, and that its errors are reported."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from tests.core.advisor.samples import profile
from tests.core.app.past_runs import past_run
from torchyard_core.advisor.recommendation import Advice
from torchyard_core.app.profile_script import profile_cache
from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_core.topology.file import read_topology
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.planner.advice_source import AdviceSource

TOPOLOGY = """\
version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 1}]
program: {script: train.py}
"""


def test_advice_comes_from_the_profile_of_this_computer(qtbot: QtBot, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("pass\n")
    (work / "topology.yaml").write_text(TOPOLOGY)
    home = Home(tmp_path / "home")
    home.path.mkdir()
    home.fleet_file.write_text("version: 1\nhosts: [{name: one, address: 10.0.0.1}, {name: two, address: 10.0.0.2}]\n")
    owner = QObject()
    model = FleetModel(home, home.fleet_file, owner)
    source = read_topology(work / "topology.yaml")
    found: list[Advice | TorchyardError] = []
    advisor = AdviceSource(model)
    try:
        advisor.advise(source, model.facts(), found.append, found.append, owner)
        qtbot.waitUntil(lambda: len(found) == 1, timeout=30_000)
        assert isinstance(found[0], TorchyardError)
        assert found[0].code == "no_profile"

        profile_cache(home).keep(work.resolve(), profile(kind="unknown", snapshot=None))
        advisor.advise(source, model.facts(), found.append, found.append, owner)
        qtbot.waitUntil(lambda: len(found) == 2, timeout=30_000)
        assert isinstance(found[1], Advice)
        assert found[1].fastest.counts.trainers <= 2

        past_run(home, "20261128-090000-aaaa", work.resolve(), compute=1.5, text=TOPOLOGY, snapshot=None)
        advisor.advise(source, model.facts(), found.append, found.append, owner)
        advisor.advise(source, model.facts(), found.append, found.append, owner, without_history=True)
        qtbot.waitUntil(lambda: len(found) == 4, timeout=30_000)
        advice = [each for each in found if isinstance(each, Advice)]
        is_corrected = ["measurements of 1 run" in "".join(each.remarks) for each in advice]
        assert sorted(is_corrected) == [False, False, True]
    finally:
        model.close()
