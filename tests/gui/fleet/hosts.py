"""The window's fleet on lab hosts, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytestqt.qtbot import QtBot

from tests.lab import Desktop
from torchyard_core.home import Home
from torchyard_gui.bridge.fleet_model import FleetModel

WITHIN_MS = 60_000
DesktopModel = Callable[[Desktop], FleetModel]


@pytest.fixture
def desktop_model(bare_hosts: None, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> Iterator[DesktopModel]:
    """Makes the fleet of a desktop: `desktop_model(desktop)`, on hosts that have nothing of ours yet. Nothing of the
    person who runs the tests plays a part."""
    made: list[FleetModel] = []

    def make(desktop: Desktop) -> FleetModel:
        monkeypatch.setenv("HOME", str(desktop.user_home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        made.append(FleetModel(Home(desktop.home), desktop.fleet_file))
        return made[-1]

    yield make
    for model in made:
        model.close()


def at_rest(model: FleetModel) -> bool:
    """Whether nothing is under way on any host."""
    return all(status.doing is None for status in model.hosts)


def state_of(model: FleetModel, name: str) -> str:
    status = model.status(name)
    return "" if status is None else status.state
