"""Tests of the whole window: the file that it opens at its start, pages, actions, launches, and unsaved changes."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from PySide6.QtCore import QLocale, Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from torchyard_core.booking.model import Draft, Slot
from torchyard_core.home import Home
from torchyard_gui import app
from torchyard_gui.bookings.labels import days_title
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.page import TopologyPage
from torchyard_gui.widgets.dialogs import ConfirmationDialog
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.signal_connections import SignalConnections
from torchyard_gui.windows.welcome import OpenExampleButton, example_file

if TYPE_CHECKING:
    from torchyard_gui.fleet.page import FleetPage

TOPOLOGY = """version: 1
name: small
pools:
  - {name: workers, role: worker, replicas: 2, gpus: 0}
program: {script: train.py}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Writes a small topology and its script."""
    path = tmp_path / "small.yaml"
    path.write_text(TOPOLOGY, encoding="utf-8")
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    return path


def opened(qtbot: QtBot, home: Home, file: Path | None = None) -> MainWindow:
    """Shows the window and returns it; no host is contacted."""
    window = app.make_window(home, home.fleet_file, file)
    qtbot.addWidget(window)
    window.painted.disconnect()
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    return window


def topology_page(window: MainWindow) -> TopologyPage:
    page = window.page("topology")
    assert isinstance(page, TopologyPage)
    return page


def test_without_a_file_an_untitled_topology_is_open(qtbot: QtBot, home: Home) -> None:
    window = opened(qtbot, home)
    assert window.windowTitle() == "untitled[*] — Torchyard"
    assert not window.isWindowModified()
    assert window.keys == ["topology", "fleet", "runs", "bookings", "sweeps"]


def test_with_a_file_its_topology_is_open(qtbot: QtBot, home: Home, file: Path) -> None:
    window = opened(qtbot, home, file)
    assert window.windowTitle() == "small.yaml[*] — Torchyard"
    assert topology_page(window).document.value.name == "small"
    assert window.settings.recent_files == [file]


def test_dates_are_in_the_language_of_the_window(qtbot: QtBot, home: Home) -> None:
    QLocale.setDefault(QLocale("de_DE"))
    opened(qtbot, home)
    assert days_title("week", (date(2026, 11, 30), date(2026, 12, 6))) == "30 Nov – 6 Dec 2026"
    assert QLocale().decimalPoint() == "."


def test_a_missing_file_is_reported_on_the_page(qtbot: QtBot, home: Home, tmp_path: Path) -> None:
    window = opened(qtbot, home, tmp_path / "none.yaml")
    notice = topology_page(window).notice_bar
    assert notice.isVisible()
    assert "none.yaml" in notice.text


def test_the_button_on_the_empty_canvas_opens_the_example(qtbot: QtBot, home: Home) -> None:
    window = opened(qtbot, home)
    button = topology_page(window).view.findChild(OpenExampleButton)
    assert button.isVisible()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert topology_page(window).document.path == example_file()
    assert not button.isVisible()
    assert topology_page(window).view.hasFocus()


def test_a_dropped_file_is_opened(qtbot: QtBot, home: Home, file: Path) -> None:
    window = opened(qtbot, home)
    find_wiring(window).fleet.has_looked = True  # Prevents a check of the only host, which would be this computer.
    window.show_page("fleet")
    window.file_dropped.emit(file)
    assert window.current == "topology"
    assert topology_page(window).document.path == file


def test_every_page_can_be_shown_by_its_key(qtbot: QtBot, home: Home, file: Path) -> None:
    window = opened(qtbot, home, file)
    find_wiring(window).runs.refresh = lambda: None  # type: ignore[method-assign]  # This prevents contact with hosts.
    find_wiring(window).fleet.has_looked = True
    for number, key in enumerate(window.keys):
        qtbot.keyClick(window, Qt.Key(Qt.Key.Key_1.value + number), Qt.KeyboardModifier.ControlModifier)
        assert window.current == key
        assert window.page(key).isVisible()


def test_every_action_has_a_name_and_no_shortcut_means_two_things(qtbot: QtBot, home: Home, file: Path) -> None:
    window = opened(qtbot, home, file)
    window.make_pages()
    qtbot.waitUntil(lambda: all(window.has_page(key) for key in window.keys))
    for key in window.keys:
        shortcuts: dict[str, str] = {}
        for action in [*window.page_actions(key), *window.actions_.all()]:
            assert action.text()
            for shortcut in action.shortcuts():
                other = shortcuts.setdefault(shortcut.toString(), action.text())
                assert other == action.text(), f"{shortcut.toString()} on {key}: {other} and {action.text()}"


def test_unsaved_changes_ask_before_the_window_closes(qtbot: QtBot, home: Home, file: Path) -> None:
    window = opened(qtbot, home, file)
    topology_page(window).editor.set_name("other")
    assert window.isWindowModified()
    assert not window.close()
    box = window.findChild(ConfirmationDialog)
    with qtbot.waitSignal(window.closed):
        qtbot.mouseClick(box.yes, Qt.MouseButton.LeftButton)
    assert file.read_text(encoding="utf-8") == TOPOLOGY


def test_launch_fills_the_checklist_and_a_failure_is_shown_there(qtbot: QtBot, home: Home, file: Path) -> None:
    home.path.mkdir()
    home.fleet_file.write_text("version: 1\nhosts:\n  - {name: nowhere, address: nowhere.invalid}\n", encoding="utf-8")
    window = opened(qtbot, home, file)
    topology_page(window).launch_action.trigger()
    panel = find_wiring(window).launch_panel
    assert panel.isVisible()
    qtbot.waitUntil(lambda: not panel.is_launching, timeout=30_000)
    assert panel.notice.isVisible() or any(row.failed for row in panel.checklist.rows.values())
    panel.close()


def test_the_question_before_the_removal_of_a_cluster_counts_the_bookings_of_its_nodes(
    qtbot: QtBot, home: Home
) -> None:
    home.path.mkdir()
    home.fleet_file.write_text("version: 1\nhosts: []\nclusters:\n  - {name: hpc, kind: slurm}\n", encoding="utf-8")
    window = opened(qtbot, home)
    store = find_wiring(window).bookings.store()
    store.remember_slots([Slot(f"slurm:{name}", name.partition("/")[0], 0) for name in ("hpc/n1", "far/n1")])
    start = store.now() + timedelta(days=3)
    for node in ("hpc/n1", "far/n1"):
        store.book(Draft("mine", (f"slurm:{node}",), start, start + timedelta(hours=1), "UTC"))
    page = cast("FleetPage", window.show_page("fleet"))
    page.remove_hosts("hpc")
    question = page.dialog
    assert question is not None
    text = "You have a booking of its nodes. Slurm keeps its reservation: cancel it first."
    qtbot.waitUntil(lambda: text in [one.text() for one in question.findChildren(QLabel)])
    question.reject()


def test_a_copy_of_what_a_run_ran_opens_as_a_new_topology(qtbot: QtBot, home: Home) -> None:
    window = opened(qtbot, home)
    window.page("runs").edit_copy.emit(TOPOLOGY)  # type: ignore[attr-defined]  # Only the subclass has this attribute.
    assert window.current == "topology"
    assert topology_page(window).document.value.name == "small"
    assert topology_page(window).document.path is None
    topology_page(window).document.start_new()


def test_the_whole_window_follows_the_theme(qtbot: QtBot, home: Home, file: Path) -> None:
    window = opened(qtbot, home, file)
    light = window.grab().toImage()
    theme().set_mode("dark")
    dark = window.grab().toImage()
    for x, y in ((3, 400), (100, 3), (400, 300)):
        assert light.pixelColor(x, y).lightness() > 200
        assert dark.pixelColor(x, y).lightness() < 60


def find_wiring(window: MainWindow) -> SignalConnections:
    wiring = window.findChild(SignalConnections)
    assert isinstance(wiring, SignalConnections)
    return wiring
