"""Fixtures of the Sweeps page, with a simulated sweep on two hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytestqt.qtbot import QtBot

from tests.gui.page_window import show_page
from tests.gui.runs.fake_hosts import close, runs_model
from tests.gui.sweeps.fake_sweep import ActingSweep
from torchyard_core.home import Home
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.sweeps.page import SweepsPage


@pytest.fixture
def acting(home: Home) -> ActingSweep:
    """Returns a live sweep that this computer has started."""
    sweep = ActingSweep()
    sweep.note_sweep(home)
    sweep.start()
    return sweep


@pytest.fixture
def page(qtbot: QtBot, home: Home, acting: ActingSweep) -> Iterator[SweepsPage]:
    """Returns a visible page with the trials of the live sweep."""
    runs = runs_model(home, acting)
    page, _window = show_page(qtbot, lambda: SweepsPage(SweepsModel(runs, runs)), 1100, 800)
    page.list.setFocus()
    if acting.data is not None:
        qtbot.waitUntil(lambda: page.table.trials.rowCount() == len((acting.data or {})["trials"]))
        qtbot.waitUntil(lambda: bool(page.sweep and page.sweep.is_fresh))
    yield page
    page.close_page()
    close(runs)
