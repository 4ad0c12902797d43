"""Tests of the Settings dialog: it writes, undoes and resets changes at once, and shows changes of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit
from pytestqt.qtbot import QtBot

from tests.gui.windows.conftest import wiring_of
from torchyard_core.home import Home
from torchyard_gui.bridge.settings_model import SettingsModel
from torchyard_gui.theme.theme import theme
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.settings_dialog import SettingsDialog

Key = Qt.Key


@pytest.fixture
def dialog(window: MainWindow, qtbot: QtBot) -> SettingsDialog:
    QTest.keyClick(window, Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
    found = window.findChild(SettingsDialog)
    assert isinstance(found, SettingsDialog)
    qtbot.waitUntil(found.isVisible)
    return found


def field(dialog: SettingsDialog, key: str) -> QLineEdit:
    found = dialog.rows[key].text
    assert found is not None
    return found


def enter(dialog: SettingsDialog, key: str, text: str) -> None:
    field(dialog, key).setFocus()
    field(dialog, key).selectAll()
    QTest.keyClick(field(dialog, key), Key.Key_Delete)
    QTest.keyClicks(field(dialog, key), text)
    QTest.keyClick(field(dialog, key), Key.Key_Return)


def test_a_change_is_written_undone_and_reset(dialog: SettingsDialog) -> None:
    file = dialog.model.path
    file.write_text("# mine\nperson: kim  # me\n")
    dialog.model.reload()
    assert field(dialog, "person").text() == "kim"
    assert not dialog.undo.isEnabled()
    enter(dialog, "zone", "Asia/Seoul")
    assert file.read_text() == "# mine\nperson: kim  # me\nzone: Asia/Seoul\n"
    QTest.mouseClick(dialog.undo, Qt.MouseButton.LeftButton)
    assert file.read_text() == "# mine\nperson: kim  # me\n"
    assert field(dialog, "zone").text() == ""
    assert not dialog.undo.isEnabled()
    QTest.mouseClick(dialog.rows["person"].reset, Qt.MouseButton.LeftButton)
    assert file.read_text() == "# mine\n"
    assert not dialog.rows["person"].reset.isEnabled()
    QTest.keyClick(dialog, Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert file.read_text() == "# mine\nperson: kim\n"
    choice = dialog.rows["notifications"].choice
    assert choice is not None
    QTest.mouseClick(choice.button("failures"), Qt.MouseButton.LeftButton)
    assert file.read_text() == "# mine\nperson: kim\nnotifications: failures\n"


def test_an_invalid_value_is_marked_and_not_written(dialog: SettingsDialog) -> None:
    enter(dialog, "zone", "Asia/Seul")
    row = dialog.rows["zone"].row
    assert row.note.text() == (
        "There is no time zone “Asia/Seul”; did you mean “Asia/Seoul”? "
        "Zones have names like Europe/Berlin, Asia/Seoul or UTC."
    )
    assert not dialog.model.path.exists()
    QTest.keyClick(dialog, Key.Key_Escape)
    assert dialog.isVisible()
    assert dialog.notice.text == "“Time zone” was not changed."
    assert (field(dialog, "zone").text(), row.problem) == ("", "")
    QTest.keyClick(dialog, Key.Key_Escape)
    assert not dialog.isVisible()


def test_changes_by_other_programs_are_shown(dialog: SettingsDialog, qtbot: QtBot) -> None:
    file = dialog.model.path
    file.write_text("person: kim\n")
    qtbot.waitUntil(lambda: field(dialog, "person").text() == "kim")
    other = file.with_name("other")
    other.write_text("person: lee\n")
    other.replace(file)  # The file is replaced by renaming another one, as editors do.
    qtbot.waitUntil(lambda: field(dialog, "person").text() == "lee")
    enter(dialog, "zone", "UTC")
    file.write_text("person: lee\nzone: Asia/Seoul\n")
    qtbot.waitUntil(lambda: field(dialog, "zone").text() == "Asia/Seoul")
    assert not dialog.undo.isEnabled(), "undo would revert the change of the other program"
    QTest.keyClicks(field(dialog, "person"), "x")
    file.write_text("zone: [\n")
    qtbot.waitUntil(dialog.notice.isVisible)
    assert "settings.yaml:1" in dialog.notice.text
    assert not field(dialog, "zone").isEnabled()
    assert dialog.model.settings.person == "lee", "the last valid settings stay in force"
    file.write_text("zone: UTC\n")
    qtbot.waitUntil(lambda: not dialog.notice.isVisible())
    assert field(dialog, "zone").text() == "UTC"
    assert field(dialog, "person").text() == "leex", "a text that is being edited is kept"


def test_the_theme_and_the_other_pages(dialog: SettingsDialog, window: MainWindow, qtbot: QtBot) -> None:
    QTest.mouseClick(dialog.mode.button("dark"), Qt.MouseButton.LeftButton)
    assert theme().is_dark
    assert window.settings.mode == "dark"
    QTest.mouseClick(dialog.mode_reset, Qt.MouseButton.LeftButton)
    assert (window.settings.mode, dialog.mode.value) == ("system", "system")
    assert not dialog.mode_reset.isEnabled()
    resets = [row.reset.mapTo(dialog, QPoint()).x() for row in dialog.rows.values()]
    assert {dialog.mode_reset.mapTo(dialog, QPoint()).x()} == set(resets), "the reset buttons are in one column"
    QTest.mouseClick(dialog.mode.button("dark"), Qt.MouseButton.LeftButton)
    assert [one.text() for one in window.actions_.all() if one.isChecked()] == ["Dark"]
    window.actions_.choose_mode("light")
    QTest.mouseClick(dialog.hosts, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.current == "fleet")


def test_a_change_of_the_zone_reaches_the_open_calendar(window: MainWindow, qtbot: QtBot, tmp_path: Path) -> None:
    wiring = wiring_of(window)
    settings = wiring.settings
    window.show_page("bookings")
    qtbot.waitUntil(lambda: wiring.bookings.has_loaded)
    settings.path.write_text("zone: Asia/Seoul\n")
    qtbot.waitUntil(lambda: wiring.bookings.has_loaded and wiring.bookings.seen.zone == "Asia/Seoul")


def test_the_rail_opens_the_dialog(window: MainWindow, qtbot: QtBot) -> None:
    QTest.mouseClick(window.rail.settings_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: isinstance(QApplication.activeWindow(), SettingsDialog))


def test_a_file_in_a_folder_that_did_not_exist_is_noticed(qtbot: QtBot, tmp_path: Path) -> None:
    home = Home(tmp_path / "none" / "yet")
    model = SettingsModel(home)
    home.path.mkdir(parents=True)
    qtbot.waitUntil(lambda: str(home.path) in model.watched)
    home.settings_file.write_text("zone: UTC\n")
    qtbot.waitUntil(lambda: model.settings.zone == "UTC")
    model.close()
