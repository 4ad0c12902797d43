"""Creates the fleet model and the Fleet page for lab hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from tests.gui.page_window import show_page
from tests.lab import Desktop
from torchyard_core.home import Home
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.page import FleetPage

WITHIN_MS = 60_000
DesktopModel = Callable[[Desktop], FleetModel]
Show = Callable[[FleetModel], FleetPage]


@pytest.fixture
def desktop_model(bare_hosts: None, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> Iterator[DesktopModel]:
    """Returns a function that creates the fleet model of a desktop.

    The hosts have no agent. The model uses the desktop's home folder, and not that of the user who runs the tests.
    """
    made: list[FleetModel] = []

    def make(desktop: Desktop) -> FleetModel:
        monkeypatch.setenv("HOME", str(desktop.user_home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        made.append(FleetModel(Home(desktop.home), desktop.fleet_file))
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.fixture
def show(qtbot: QtBot) -> Iterator[Show]:
    """Shows the page; no host is contacted."""
    windows: list[QWidget] = []

    def show(model: FleetModel) -> FleetPage:
        model.has_looked = True
        page, window = show_page(qtbot, lambda: FleetPage(model), 1152, 776)
        windows.append(window)
        return page

    yield show
    for window in windows:
        window.close()


def at_rest(model: FleetModel) -> bool:
    """Returns whether no host is being checked or changed."""
    return all(status.doing is None for status in model.hosts)


def state_of(model: FleetModel, name: str) -> str:
    status = model.status(name)
    return "" if status is None else status.state


def press(qtbot: QtBot, button: QPushButton | None) -> None:
    assert button is not None
    assert button.isVisible()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
