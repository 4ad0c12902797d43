"""Tests that everything in the window can be reached by keyboard and has an accessible name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible, QAction
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QListWidget, QMenu, QWidget
from pytestqt.qtbot import QtBot
from tools.launch_phases import phases
from tools.sample_fleet import FAILED_RUN

from tests.gui.windows.conftest import wiring_of
from torchyard_gui.bridge.launch_job import LaunchJob
from torchyard_gui.launch import panel as launch_panel
from torchyard_gui.widgets import screen_reader
from torchyard_gui.windows.main_window import MainWindow

CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


def listed(palette: QListWidget) -> list[str]:
    return [palette.item(row).text() for row in range(palette.count())]


def nameless(root: QWidget) -> list[str]:
    """Returns the widgets that accept the focus but have no accessible name."""
    found = []
    for widget in root.findChildren(QWidget):
        # A viewport takes its name from its scroll area, and the line edit of a spin box from the spin box.
        inside = isinstance(widget.parent(), QAbstractScrollArea) or widget.focusProxy() is not None
        if widget.isVisible() and widget.focusPolicy() != Qt.FocusPolicy.NoFocus and not inside:
            told = QAccessible.queryAccessibleInterface(widget)
            if told is None or not told.text(QAccessible.Text.Name).strip():
                found.append(f"{type(widget).__name__} in {type(widget.parent()).__name__}")
    return found


@pytest.mark.parametrize("page", ["topology", "fleet", "runs", "bookings", "sweeps"])
def test_the_palette_offers_all_that_can_be_done_now(window: MainWindow, page: str) -> None:
    window.show_page(page)
    QTest.keyClick(window, Qt.Key.Key_P, CONTROL | SHIFT)
    offered = listed(window.palette_.list)
    can = [action for key in window.keys for action in window.page_actions(key)] + window.actions_.all()
    assert len(can) > 40
    wanted = {action.text().replace("&", "") for action in can if action.isEnabled() and action.menu() is None}
    assert wanted - set(offered) == set()


def test_no_action_is_out_of_the_keyboards_reach(window: MainWindow) -> None:
    """An action that is not in the command palette must have a button or a menu that can be reached with Tab or F10."""
    in_palette = set(window.all_actions())
    ours = [action for action in window.findChildren(QAction) if action.text() and action.menu() is None]
    beside = {action.text() for action in ours if action not in in_palette and not action.isSeparator()}
    # These exceptions are the button of an empty page, and an action of pyqtgraph for a menu that is never shown.
    assert beside <= {"Go to the topology", "Export..."}


def test_long_menus_have_submenus(window: MainWindow) -> None:
    window.menu.fill()
    edit = window.menu.menus["edit"]
    assert len(edit.actions()) < 18
    within = {each.title(): [action.text() for action in each.actions()] for each in edit.findChildren(QMenu)}
    assert within["Add a role"][:2] == ["Add chief", "Add worker"]
    assert "Preset BASIC_GPU" in within["Presets"]


@pytest.mark.parametrize("notifications", ["all", "failures", "none"])
def test_changes_of_a_run_are_announced_on_any_page(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch, notifications: str
) -> None:
    heard: list[tuple[str, bool]] = []
    assertive = QAccessible.AnnouncementPoliteness.Assertive
    monkeypatch.setattr(screen_reader, "EVERY_MS", 0)
    monkeypatch.setattr(
        screen_reader, "send", lambda event: heard.append((event.message(), event.politeness() == assertive))
    )
    wiring_of(window).settings.change("notifications", notifications)
    runs = wiring_of(window).runs
    failed = runs.history.load(FAILED_RUN)
    assert failed is not None
    record = replace(failed, run_id="20261125-100000-f0f0", name="digits", ended=None, reason="")
    for state, reason in (("running", ""), ("restarting", ""), ("running", ""), ("failed", "gpu-a was lost")):
        runs.history.save(replace(record, state=state, reason=reason))
        runs.read_history()
    window.show_page("runs")
    started, ended = [("digits is restarting", False)], [("digits failed: gpu-a was lost", True)]
    assert heard == {"all": started + ended, "failures": ended, "none": []}[notifications]
    assert window.toast.label.text() == ("" if notifications == "none" else "digits failed: gpu-a was lost")


@pytest.mark.parametrize("page", ["topology", "fleet", "runs", "bookings", "sweeps"])
def test_focusable_widgets_have_names(window: MainWindow, qtbot: QtBot, page: str) -> None:
    shown = window.show_page(page)
    assert shown.accessibleName()
    qtbot.waitUntil(shown.isVisible)
    assert nameless(window) == []


def test_the_launch_panel_has_names_in_words(window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    # `phases` replaces this class. Because it is set through monkeypatch here, pytest restores it after the test.
    monkeypatch.setattr(launch_panel, "LaunchJob", LaunchJob)
    for name, panel in phases(wiring_of(window)):
        assert panel.isVisible()
        assert nameless(panel) == []
        if name == "failed-check":
            assert panel.row("torch").accessibleName() == "torch: failed. gpu-f"
            assert panel.row("topology").accessibleName() == "Topology: passed. resnet-imagenet"


def test_enter_trusts_where_an_unknown_key_is_in_the_way(
    window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_panel, "LaunchJob", LaunchJob)
    for name, panel in phases(wiring_of(window)):
        if name == "unknown-key":
            panel.activateWindow()
            qtbot.waitUntil(panel.isActiveWindow)
            assert panel.focusWidget() is panel.notice.buttons[0]
            panel.trust_requested.disconnect()
            with qtbot.waitSignal(panel.trust_requested) as asked:
                QTest.keyClick(panel.focusWidget(), Qt.Key.Key_Return)
            assert asked.args == ["gpu-f"]


def test_the_list_of_a_page_that_is_shown_has_the_focus(window: MainWindow, qtbot: QtBot) -> None:
    bodies = {"fleet": "list", "bookings": "surface", "runs": "list", "sweeps": "list"}
    for key, name in bodies.items():
        page: Any = window.page(key)
        window.show_page(key)
        body = getattr(page, name) if key not in ("runs", "sweeps") or getattr(page.model, key) else page
        qtbot.waitUntil(lambda body=body: body.isVisible())
        for other in ("topology", key):
            QTest.mouseClick(window.rail.button(window.keys.index(other)), Qt.MouseButton.LeftButton)
        assert QApplication.focusWidget() is body, key
    fleet: Any = window.show_page("fleet")
    before = fleet.list.chosen
    QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Down)
    assert fleet.list.chosen != before
