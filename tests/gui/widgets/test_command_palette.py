"""Tests that the command palette finds actions by their letters and runs them with Enter."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QLineEdit, QMainWindow, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from torchyard_gui.widgets.command_palette import CommandPalette


class Place:
    """A window with a field, three actions and the palette."""

    def __init__(self, qtbot: QtBot) -> None:
        self.window = QMainWindow()
        qtbot.addWidget(self.window)
        middle = QWidget()
        self.field = QLineEdit()
        QVBoxLayout(middle).addWidget(self.field)
        self.window.setCentralWidget(middle)
        self.actions = {name: QAction(name, self.window) for name in ("&Undo", "Save as …", "Launch …")}
        self.done: list[str] = []
        for name, action in self.actions.items():
            action.triggered.connect(lambda _=False, name=name: self.done.append(name))
        self.palette = CommandPalette(self.actions.values, middle)
        self.window.resize(800, 600)
        self.window.show()
        self.window.activateWindow()
        qtbot.waitUntil(self.window.isActiveWindow)
        self.field.setFocus()

    def rows(self) -> list[str]:
        return [self.palette.list.item(row).text() for row in range(self.palette.list.count())]


@pytest.fixture
def place(qtbot: QtBot) -> Place:
    return Place(qtbot)


def test_it_opens_with_everything_there_is_to_do(place: Place) -> None:
    place.palette.open()
    assert place.rows() == ["Launch …", "Save as …", "Undo"]
    assert place.palette.field.hasFocus()


def test_what_the_page_can_do_comes_first(place: Place) -> None:
    palette = CommandPalette(
        place.actions.values,
        place.window.centralWidget(),
        first=lambda: [place.actions["&Undo"], place.actions["Save as …"]],
    )
    palette.open()
    assert [palette.list.item(row).text() for row in range(3)] == ["Save as …", "Undo", "Launch …"]


def test_letters_and_enter_do_what_was_found(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    qtbot.keyClicks(place.palette.field, "as sav")
    assert place.rows() == ["Save as …"]
    qtbot.keyClick(place.palette.field, Qt.Key.Key_Return)
    assert place.done == ["Save as …"]
    assert place.palette.isHidden()
    assert place.field.hasFocus()


def test_arrows_go_round(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    qtbot.keyClick(place.palette.field, Qt.Key.Key_Up)
    qtbot.keyClick(place.palette.field, Qt.Key.Key_Return)
    assert place.done == ["&Undo"]


def test_what_cannot_be_done_now_is_not_offered(place: Place) -> None:
    place.actions["&Undo"].setEnabled(False)
    place.palette.open()
    assert "Undo" not in place.rows()


def test_nothing_found_and_enter_does_nothing(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    qtbot.keyClicks(place.palette.field, "zzz")
    qtbot.keyClick(place.palette.field, Qt.Key.Key_Return)
    assert (place.rows(), place.done) == ([], [])


def test_escape_gives_the_keyboard_back(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    qtbot.keyClick(place.palette.field, Qt.Key.Key_Escape)
    assert place.palette.isHidden()
    assert place.field.hasFocus()


def test_a_click_elsewhere_closes_it(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    place.field.setFocus()
    assert place.palette.isHidden()


def test_a_click_on_a_row_does_it(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    shown = place.palette.list
    middle = shown.visualItemRect(shown.item(1)).center()
    qtbot.mouseClick(shown.viewport(), Qt.MouseButton.LeftButton, pos=middle)
    assert place.done == ["Save as …"]


def test_it_stays_in_the_middle_when_the_window_is_resized(place: Place, qtbot: QtBot) -> None:
    place.palette.open()
    around = place.window.centralWidget()
    for width in (1200, 700):
        place.window.resize(width, 600)
        qtbot.waitUntil(lambda: abs(place.palette.geometry().center().x() - around.rect().center().x()) <= 1)
