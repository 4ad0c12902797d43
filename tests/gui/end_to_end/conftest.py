"""Fixtures of a user's window, with lab hosts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from tests.gui.end_to_end.simulated_user import SimulatedUser
from tests.lab import Desktop

OpenWindow = Callable[..., SimulatedUser]


@pytest.fixture
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tests independent of the home folder of the user who runs them."""
    for name in [name for name in os.environ if name.startswith(("SSH_", "TORCHYARD_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "nobody").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


@pytest.fixture
def window_of(qtbot: QtBot, isolated_home: None) -> OpenWindow:
    """Opens the window of a desktop, with the topology `file` if given."""

    def opened(desktop: Desktop, file: Path | None = None) -> SimulatedUser:
        return SimulatedUser(qtbot, desktop.home, desktop.fleet_file, file)

    return opened
