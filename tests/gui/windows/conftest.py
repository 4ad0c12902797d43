"""Fixtures of the whole window, with a sample fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot
from tools.sample_fleet import let_hosts_answer, write_sample

from tests.gui.theme_fixture import without_theme
from torchyard_gui import app
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.signal_connections import SignalConnections


@pytest.fixture
def window(qtbot: QtBot, tmp_path: Path) -> MainWindow:
    """Returns the window with all pages and with eight hosts, none of which is contacted."""
    with without_theme():
        window = app.make_window(*write_sample(tmp_path / "yard", "eight"))
        # pytest-qt closes the window before the fixtures end. With unsaved changes, the window would stay open, and
        # would be deleted with its jobs still running.
        qtbot.addWidget(window, before_close_func=lambda window: wiring_of(window).document.start_new())
        window.painted.disconnect()
        wiring_of(window).runs.refresh = lambda: None  # type: ignore[method-assign]  # This prevents contact with hosts.
        let_hosts_answer(wiring_of(window).fleet)
        window.make_pages()
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    qtbot.waitUntil(lambda: all(window.has_page(key) for key in window.keys))
    return window


def wiring_of(window: MainWindow) -> SignalConnections:
    wiring = window.findChild(SignalConnections)
    assert isinstance(wiring, SignalConnections)
    return wiring
