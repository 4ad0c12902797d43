"""Tests of opening the menu with the keyboard: it can be opened repeatedly, and its actions stay valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QWidget
from pytestqt.qtbot import QtBot
from tools.sample_fleet import let_hosts_answer, write_sample

from tests.gui.theme_fixture import without_theme
from torchyard_gui import app
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.signal_connections import SignalConnections

Key = Qt.Key
CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def wiring(qtbot: QtBot, tmp_path: Path) -> Iterator[SignalConnections]:
    """Returns the connections of an active window that shows the Topology page. No host is contacted."""
    with without_theme():
        window = app.make_window(*write_sample(tmp_path / "yard", "eight"))
        qtbot.addWidget(window)
        window.painted.disconnect()
        wiring = window.findChild(SignalConnections)
        assert isinstance(wiring, SignalConnections)
        let_hosts_answer(wiring.fleet)
        window.show_page("topology")
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    yield wiring
    wiring.document.start_new()


def press(*keys: Qt.Key, modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    """Presses keys in the open menu, or in the window if no menu is open."""
    for key in keys:
        at = QApplication.activePopupWidget() or QApplication.focusWidget() or QApplication.activeWindow()
        assert isinstance(at, QWidget)
        QTest.keyClick(at, key, modifiers)
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


def open_menu(window: MainWindow, qtbot: QtBot) -> None:
    press(Key.Key_F10)
    qtbot.waitUntil(window.menu.isVisible)


def choose_edit(window: MainWindow, qtbot: QtBot, text: str) -> None:
    """Chooses an action of the menu *Edit* with the keyboard."""
    open_menu(window, qtbot)
    press(Key.Key_E)
    edit = window.menu.menus["edit"]
    qtbot.waitUntil(edit.isVisible)
    for _ in edit.actions():
        chosen = edit.activeAction()
        if chosen is not None and chosen.text().startswith(text):
            break
        press(Key.Key_Down)
    press(Key.Key_Return)
    qtbot.waitUntil(lambda: not window.menu.isVisible())


def texts(window: MainWindow, name: str) -> list[str]:
    return [action.text() for action in window.menu.menus[name].actions()]


def test_the_menu_opens_as_often_as_it_is_wanted(wiring: SignalConnections, qtbot: QtBot) -> None:
    window = wiring.window
    found = []
    for _ in range(4):
        open_menu(window, qtbot)
        found.append((texts(window, "edit"), texts(window, "view"), len(window.menu.findChildren(QMenu))))
        press(Key.Key_Escape)
        qtbot.waitUntil(lambda: not window.menu.isVisible())
    assert [text.strip() for text in found[0][0][:2]] == ["Undo", "Redo"]
    assert all(each == found[0] for each in found[1:])  # No submenu is left over from an earlier opening of the menu.


def test_the_menu_has_its_first_entry_selected_after_f10(wiring: SignalConnections, qtbot: QtBot) -> None:
    menu = wiring.window.menu
    open_menu(wiring.window, qtbot)
    assert menu.activeAction() is menu.actions()[0]
    press(Key.Key_Right)
    first = menu.actions()[0].menu()
    assert isinstance(first, QMenu)
    qtbot.waitUntil(first.isVisible)
    press(Key.Key_Escape, Key.Key_Escape)
    qtbot.waitUntil(lambda: not menu.isVisible())


def test_the_palette_opens_after_the_menu(wiring: SignalConnections, qtbot: QtBot) -> None:
    window = wiring.window
    for _ in range(2):
        open_menu(window, qtbot)
        press(Key.Key_Escape)
        press(Key.Key_P, modifiers=CONTROL | SHIFT)
        qtbot.waitUntil(window.palette_.isVisible)
        press(Key.Key_Escape)
        qtbot.waitUntil(lambda: not window.palette_.isVisible())


def test_undo_and_redo_work_from_the_menu_and_by_their_keys_however_often_it_was_open(
    wiring: SignalConnections, qtbot: QtBot
) -> None:
    window = wiring.window

    def replicas() -> int:
        return sum(pool.replicas for pool in wiring.document.value.pools)

    [adds] = [action for action in window.all_actions() if action.text() == "Add evaluator"]
    before = replicas()
    adds.trigger()
    after = replicas()
    assert after == before + 1
    for _ in range(2):
        choose_edit(window, qtbot, "Undo")
        qtbot.waitUntil(lambda: replicas() == before)
        choose_edit(window, qtbot, "Redo")
        qtbot.waitUntil(lambda: replicas() == after)
    for redo, modifiers in ((Key.Key_Y, CONTROL), (Key.Key_Z, CONTROL | SHIFT)):
        press(Key.Key_Z, modifiers=CONTROL)
        qtbot.waitUntil(lambda: replicas() == before)
        press(redo, modifiers=modifiers)
        qtbot.waitUntil(lambda: replicas() == after)
