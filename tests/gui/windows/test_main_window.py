"""Tests that the window shows pages, separates their shortcuts, stores settings, and closes if all pages agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl, Signal
from PySide6.QtGui import QAction, QDragEnterEvent, QDropEvent, QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QSplitter, QWidget
from pytestqt.qtbot import QtBot

from torchyard_core.home import Home
from torchyard_gui.theme.theme import theme
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.window_settings import WindowSettings


class PageOfFields(QWidget):
    """A page with two text fields, and with an action that appends to `done`."""

    status_changed = Signal()
    icon_name = "topology"

    def __init__(self, title: str, done: list[str]) -> None:
        super().__init__()
        self.title = title
        self.bar = QLabel(title)
        self.says = f"{title} is well"
        self.may_close = True
        self.left, self.right = QLineEdit(), QLineEdit()
        self.splitter = QSplitter()
        self.splitter.setObjectName(f"{title}/fields")
        self.splitter.addWidget(self.left)
        self.splitter.addWidget(self.right)
        QHBoxLayout(self).addWidget(self.splitter)
        self.action = QAction(f"Draw in {title}")
        self.action.setShortcut(QKeySequence("Ctrl+D"))
        self.action.setProperty("menu", "edit")
        self.action.triggered.connect(lambda: done.append(title))

    def page_actions(self) -> list[QAction]:
        return [self.action]

    def status_texts(self) -> list[tuple[str, str]]:
        return [("ok", self.says)]

    def panes(self) -> list[QWidget]:
        return [self.left, self.right]

    def can_close(self) -> bool:
        return self.may_close


class Opened:
    """A window with the pages Topology and Fleet."""

    def __init__(self, qtbot: QtBot, home: Home) -> None:
        self.done: list[str] = []
        self.window = MainWindow(WindowSettings(home.path / "window.ini"))
        qtbot.addWidget(self.window, before_close_func=self._let_close)
        for key in ("topology", "fleet"):
            self.window.add_page(key, key.title(), key, lambda key=key: PageOfFields(key.title(), self.done))
        self.window.show_page("topology")
        self.window.show()
        self.window.activateWindow()
        qtbot.waitUntil(self.window.isActiveWindow)

    def page(self, key: str) -> PageOfFields:
        page = self.window.page(key)
        assert isinstance(page, PageOfFields)
        return page

    def _let_close(self, window: QWidget) -> None:
        for key in self.window.keys:
            if self.window.has_page(key):
                self.page(key).may_close = True


@pytest.fixture
def opened(qtbot: QtBot, home: Home) -> Opened:
    return Opened(qtbot, home)


def test_a_click_in_the_rail_shows_a_page(opened: Opened, qtbot: QtBot) -> None:
    qtbot.mouseClick(opened.window.rail.button(1), Qt.MouseButton.LeftButton)
    assert opened.window.current == "fleet"
    assert opened.page("fleet").isVisible()
    assert opened.page("fleet").bar.isVisible()
    assert not opened.page("topology").isVisible()


def test_control_and_a_number_shows_a_page(opened: Opened, qtbot: QtBot) -> None:
    qtbot.keyClick(opened.window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert opened.window.current == "fleet"
    assert opened.window.rail.button(1).isChecked()


def test_a_page_is_made_when_it_is_wanted(opened: Opened) -> None:
    assert [opened.window.has_page(key) for key in ("topology", "fleet")] == [True, False]
    assert opened.page("fleet").title == "Fleet"
    assert opened.window.page("fleet") is opened.page("fleet")


def test_the_same_shortcut_goes_to_the_page_that_is_shown(opened: Opened, qtbot: QtBot) -> None:
    opened.window.make_pages()
    qtbot.keyClick(opened.window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
    opened.window.show_page("fleet")
    qtbot.keyClick(opened.window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
    assert opened.done == ["Topology", "Fleet"]


def test_the_palette_does_what_another_page_can(opened: Opened, qtbot: QtBot) -> None:
    opened.window.page("fleet")
    keys = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    qtbot.keyClick(opened.window, Qt.Key.Key_P, keys)
    palette = opened.window.palette_
    assert palette.isVisible()
    qtbot.keyClicks(palette.field, "draw in fleet")
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert opened.done == ["Fleet"]
    assert opened.window.current == "fleet"


def test_menus_hold_what_the_shown_page_and_the_window_can_do(opened: Opened) -> None:
    menu = opened.window.menu
    menu.fill()
    assert [action.text() for action in menu.menus["edit"].actions()] == ["Draw in Topology", "", "Settings …"]
    assert {"Next pane", "Dark", "Go to Fleet"} <= {action.text() for action in menu.menus["view"].actions()}
    assert not menu.menus["run"].menuAction().isVisible()
    opened.window.show_page("fleet")
    menu.fill()
    assert [action.text() for action in menu.menus["edit"].actions()] == ["Draw in Fleet", "", "Settings …"]


def test_f6_goes_round_the_panes(opened: Opened, qtbot: QtBot) -> None:
    page = opened.page("topology")
    opened.window.rail.focus_current()
    went = []
    for _ in range(3):
        qtbot.keyClick(opened.window, Qt.Key.Key_F6)
        went.append(opened.window.focusWidget())
    assert went == [page.left, page.right, opened.window.rail.button(0)]
    qtbot.keyClick(opened.window, Qt.Key.Key_F6, Qt.KeyboardModifier.ShiftModifier)
    assert opened.window.focusWidget() is page.right


def test_the_status_line_says_what_fleet_and_page_say(opened: Opened) -> None:
    opened.window.set_fleet_texts([("ok", "5 of 6 hosts answer")], "24 GPUs known")
    assert opened.window.status_line.texts == ["5 of 6 hosts answer", "Topology is well"]
    page = opened.page("topology")
    page.says = "2 problems"
    page.status_changed.emit()
    assert opened.window.status_line.texts == ["5 of 6 hosts answer", "2 problems"]


def test_a_page_with_something_unsaved_keeps_the_window_open(opened: Opened) -> None:
    page = opened.page("topology")
    page.may_close = False
    assert not opened.window.close()
    assert opened.window.isVisible()
    page.may_close = True
    assert opened.window.close()


def test_panes_and_colours_are_as_they_were_left(opened: Opened, qtbot: QtBot, home: Home) -> None:
    opened.page("topology").splitter.setSizes([200, 800])
    left = opened.page("topology").splitter.sizes()
    dark = next(action for action in opened.window.actions_.all() if action.data() == "dark")
    dark.trigger()
    assert theme().is_dark
    assert opened.window.close()

    again = WindowSettings(home.path / "window.ini")
    assert again.mode == "dark"
    second = MainWindow(again)
    qtbot.addWidget(second)
    second.add_page("topology", "Topology", "topology", lambda: PageOfFields("Topology", []))
    page = second.show_page("topology")
    second.show()
    assert isinstance(page, PageOfFields)
    assert page.splitter.sizes() == left


def test_a_window_comes_back_as_large_as_it_was(qtbot: QtBot, home: Home) -> None:
    sizes = []
    for size in ((640, 480), (300, 200)):
        window = QWidget()
        qtbot.addWidget(window)
        window.resize(*size)
        settings = WindowSettings(home.path / "window.ini")
        settings.restore(window)
        window.show()
        sizes.append((window.width(), window.height()))
        settings.keep(window)
        settings.sync()
    assert sizes == [(640, 480), (640, 480)]


def test_invalid_settings_are_ignored(home: Home) -> None:
    home.path.mkdir()
    file = home.path / "window.ini"
    file.write_bytes(b"[theme]\nmode=@Invalid(\x00\xff\n[recent]\nsize=many\n")
    settings = WindowSettings(file)
    assert settings.mode == "system"
    assert settings.recent_files == []


def test_recent_files_are_the_latest_first_and_each_once(home: Home, tmp_path: Path) -> None:
    settings = WindowSettings(home.path / "window.ini")
    for number in (*range(12), 5):
        settings.remember_file(tmp_path / f"{number}.yaml")
    settings.sync()
    names = [path.stem for path in WindowSettings(home.path / "window.ini").recent_files]
    assert names == ["5", "11", "10", "9", "8", "7", "6", "4", "3", "2"]


def test_a_topology_file_can_be_dropped_on_the_window(opened: Opened, qtbot: QtBot, tmp_path: Path) -> None:
    for name in ("digits.yaml", "job.json", "job.conf"):
        with qtbot.waitSignal(opened.window.file_dropped) as dropped:
            assert drop(opened.window, tmp_path / name)
        assert dropped.args == [tmp_path / name]


def test_another_file_is_not_taken(opened: Opened, qtbot: QtBot, tmp_path: Path) -> None:
    with qtbot.assertNotEmitted(opened.window.file_dropped):
        assert not drop(opened.window, tmp_path / "photo.png")


def test_the_first_paint_is_signalled_once(qtbot: QtBot, home: Home) -> None:
    window = MainWindow(WindowSettings(home.path / "window.ini"))
    qtbot.addWidget(window)
    heard: list[bool] = []
    window.painted.connect(lambda: heard.append(True))
    with qtbot.waitSignal(window.painted):
        window.show()
    window.repaint()
    assert heard == [True]


def drop(window: MainWindow, path: Path) -> bool:
    """Drops a file on the window; returns whether the window accepts it."""
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    copy, left, none = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    enter = QDragEnterEvent(QPoint(400, 300), copy, data, left, none)
    enter.ignore()
    window.dragEnterEvent(enter)
    if enter.isAccepted():
        window.dropEvent(QDropEvent(QPointF(400, 300), copy, data, left, none))
    return enter.isAccepted()
