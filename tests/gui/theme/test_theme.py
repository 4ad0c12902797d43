"""Tests that the theme follows the system or the user's choice, reports changes, and updates icons."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QAction, QColor, QIcon, QImage, QPainter
from PySide6.QtWidgets import (
    QAbstractButton,
    QCheckBox,
    QMainWindow,
    QPushButton,
    QRadioButton,
    QStyle,
    QStyleOptionButton,
    QToolButton,
    QWidget,
)
from pytestqt.qtbot import QtBot

import torchyard_gui
from torchyard_gui.theme.icons import icon, paint_role_badge, paint_state, pixmap, refresh_icons, role_icon
from torchyard_gui.theme.marks import LETTERS, STATES
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import DARK, LIGHT


def test_dark_changes_every_colour_and_says_so(qtbot: QtBot) -> None:
    pen, brush = theme().pen("hair"), theme().brush("s2")
    with qtbot.waitSignal(theme().changed):
        theme().set_mode("dark")
    assert theme().tokens is DARK
    assert theme().color("s2") == QColor(DARK.s2)
    assert theme().pen("hair").color() == QColor(DARK.hair) != pen.color()
    assert theme().brush("s2").color() != brush.color()


def test_the_same_mode_again_says_nothing(qtbot: QtBot) -> None:
    with qtbot.assertNotEmitted(theme().changed):
        theme().set_mode("light")
    assert theme().tokens is LIGHT


def test_pens_are_made_once(qapp: object) -> None:
    assert theme().pen("edge", 3) is theme().pen("edge", 3)


def test_the_application_wears_the_theme(qtbot: QtBot) -> None:
    plain, button = QWidget(), QPushButton("Launch")
    qtbot.addWidget(plain)
    qtbot.addWidget(button)
    theme().set_mode("dark")
    assert plain.grab().toImage().pixelColor(2, 2) == QColor(DARK.s1)
    assert button.grab().toImage().pixelColor(button.rect().center().x(), 4) == QColor(DARK.s2)


def test_an_icon_of_an_action_and_of_a_button_follows_the_theme(qtbot: QtBot) -> None:
    window = QMainWindow()
    qtbot.addWidget(window)
    action = QAction(icon("undo"), "Undo", window)
    button = QPushButton(role_icon("worker"), "Worker", window)
    theme().set_mode("dark")
    refresh_icons()
    assert ink_of(action.icon().pixmap(16).toImage()) == DARK.text2.lower()
    assert DARK.worker.lower() in inks_of(button.icon().pixmap(20).toImage())


def test_a_changed_copy_of_an_icon_can_be_painted(qtbot: QtBot) -> None:
    copies = [QIcon(icon("undo")) for _ in range(100)]
    for copy in copies:
        copy.setIsMask(True)  # Qt clones the engine of the icon. A clone without a reference crashed the program.
    gc.collect()
    assert all(not copy.pixmap(16).isNull() for copy in copies)


def test_a_pixmap_is_sharp_on_a_dense_screen(qapp: object) -> None:
    image = pixmap("search", 16, "text", ratio=2)
    assert (image.width(), image.deviceIndependentSize().width()) == (32, 16)


@pytest.mark.parametrize("role", LETTERS)
def test_a_badge_has_the_colour_of_its_role_and_a_letter_in_it(qapp: object, role: str) -> None:
    inks = inks_of(drawn(lambda painter, rect: paint_role_badge(painter, rect, role)))
    assert {getattr(LIGHT, role).lower(), LIGHT.on_role.lower()} <= inks


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_mark(qapp: object, state: str) -> None:
    assert inks_of(drawn(lambda painter, rect: paint_state(painter, rect, state)))


def test_a_state_without_a_word_is_drawn_as_unknown(qapp: object) -> None:
    made_up = drawn(lambda painter, rect: paint_state(painter, rect, "made up"))
    assert made_up == drawn(lambda painter, rect: paint_state(painter, rect, "unknown"))


def test_no_file_but_the_tokens_has_a_colour_in_it() -> None:
    found = [
        f"{file.name}:{number}"
        for file in Path(torchyard_gui.__file__).parent.rglob("*.py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if file.name != "tokens.py" and has_colour(line)
    ]
    assert found == []


def has_colour(line: str) -> bool:
    return re.search(r"[\"'(]#[0-9A-Fa-f]{6}\b|QColor\(\d|GlobalColor\.(?!transparent)", line) is not None


def drawn(paint: Callable[[QPainter, QRectF], None]) -> QImage:
    image = QImage(64, 64, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(0)
    painter = QPainter(image)
    paint(painter, QRectF(0, 0, 64, 64))
    painter.end()
    return image


def inks_of(image: QImage) -> set[str]:
    """Returns the opaque colours of an image."""
    colors = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    return {color.name() for color in colors if color.alpha() == 255}


def ink_of(image: QImage) -> str:
    """Returns the colour of an image's most opaque pixel."""
    points = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    return max(points, key=QColor.alpha).name()


@pytest.mark.parametrize("kind", [QPushButton, QToolButton, QCheckBox, QRadioButton])
def test_the_keyboard_focus_draws_no_rectangle_inside_a_button(qtbot: QtBot, kind: type[QAbstractButton]) -> None:
    """By default, Qt's style Fusion fills a rectangle inside the focused button once the user has pressed Tab."""
    window = QWidget()
    first, button = QPushButton("First", window), kind(window)
    button.setText("Remove")
    button.setProperty("danger", True)
    button.setGeometry(0, 40, 160, 28)
    qtbot.addWidget(window)
    with qtbot.waitActive(window):
        window.show()
        window.activateWindow()
    first.setFocus()
    button.setFocus()
    by_mouse = window.grab().toImage()
    first.setFocus()
    qtbot.keyClick(first, Qt.Key.Key_Tab)
    assert button.hasFocus()
    assert window.testAttribute(Qt.WidgetAttribute.WA_KeyboardFocusChange)
    assert window.grab().toImage() == by_mouse


def test_a_disabled_button_looks_disabled_also_if_it_deletes_something(qtbot: QtBot) -> None:
    window = QWidget()
    buttons = [QPushButton("Remove", window) for _ in range(2)]
    for button, deletes in zip(buttons, (True, False), strict=True):
        button.setProperty("danger", deletes)
        button.setGeometry(0, 0, 160, 28)
        button.setEnabled(False)
    qtbot.addWidget(window)
    first, second = (button.grab().toImage() for button in buttons)
    assert first == second


@pytest.mark.parametrize("state", list(Qt.CheckState))
def test_the_focus_of_a_check_box_is_visible_in_every_state(qtbot: QtBot, state: Qt.CheckState) -> None:
    window = QWidget()
    other, box = QPushButton("Other", window), QCheckBox("Log", window)
    box.setTristate(True)
    box.setCheckState(state)
    box.setGeometry(0, 40, 160, 28)
    qtbot.addWidget(window)
    with qtbot.waitActive(window):
        window.show()
        window.activateWindow()
    option = QStyleOptionButton()
    option.initFrom(box)
    edge = box.style().subElementRect(QStyle.SubElement.SE_CheckBoxIndicator, option, box)

    def edge_color() -> str:
        return box.grab().toImage().pixelColor(edge.left(), edge.center().y()).name()

    other.setFocus()
    without = edge_color()
    box.setFocus()
    assert edge_color() != without
