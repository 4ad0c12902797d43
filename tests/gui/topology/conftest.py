"""Fixtures of the Topology page in a window, with hosts that no test contacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from tests.core.examples import host
from tests.gui.theme_fixture import without_theme
from tests.gui.topology.page_driver import Driver, FewFiles, FleetOf, Window
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.topology.page import TopologyPage

MakeDriver = Callable[..., Driver]

DIGITS = """\
# What this is for.
version: 1
name: digits   # a short name
strategy:
  kind: all_reduce
pools:
  # The first of all.
  - {name: chief, role: chief, replicas: 1, gpus: 1, hosts: [gpu-a]}
  - {name: workers, role: worker, replicas: 4, gpus: 1}   # the others

# What runs.
program:
  script: train.py   # beside this file
"""


@pytest.fixture
def yard() -> list[HostFacts]:
    kims = replace(host("gpu-b", 4, busy=(3,)), gpu_users={"GPU-gpu-b-3": "kim"})
    return [host("gpu-a", 4), kims, host("gpu-c", 2), host("cpu-d")]


@pytest.fixture
def make_driver(qtbot: QtBot, tmp_path: Path, yard: list[HostFacts]) -> MakeDriver:
    """Returns a function that shows the page with the given hosts in a window."""

    def make(
        hosts: list[HostFacts] | None = None, recovery: Path | None = None, place: PlanningPlace | None = None
    ) -> Driver:
        fleet, recent = FleetOf(yard if hosts is None else hosts), FewFiles()
        with without_theme():
            page = TopologyPage(fleet, recent, recovery_folder=recovery, place=place)
            window = Window(page)
        fleet.setParent(window)
        qtbot.addWidget(window, before_close_func=lambda _: page.document.start_new())
        with qtbot.waitExposed(window):
            window.show()
        page.view.setFocus()
        return Driver(qtbot, page, window, fleet, recent)

    return make


@pytest.fixture
def empty(make_driver: MakeDriver) -> Driver:
    """Returns a page with an empty topology."""
    return make_driver()


@pytest.fixture
def digits_file(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    path = tmp_path / "digits.yaml"
    path.write_text(DIGITS)
    return path


@pytest.fixture
def digits(make_driver: MakeDriver, digits_file: Path) -> Driver:
    """Returns a page with a chief and four workers."""
    driver = make_driver()
    driver.page.open(digits_file)
    return driver
