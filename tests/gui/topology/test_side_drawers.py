"""Tests that palette and inspector become strips in a narrow window, and that the strips open drawers."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.gui.topology.page_driver import CONTROL, LEFT, PLAIN, SHIFT, Driver
from torchyard_core.problems import Problem
from torchyard_gui.theme.tokens import METRICS

WIDTH = METRICS.palette_strip


@pytest.fixture
def narrow(digits: Driver) -> Driver:
    digits.window.resize(1280, 800)
    digits.wait_until(lambda: digits.page.side.is_narrow)
    return digits


def left_of_canvas(driver: Driver) -> int:
    return driver.page.view.mapTo(driver.page, QPoint(0, 0)).x()


def test_below_1360_pixels_the_palette_is_a_strip_of_48(digits: Driver) -> None:
    page = digits.page
    assert page.palette_.isVisible()
    assert not page.side.strip.isVisible()
    assert left_of_canvas(digits) == 200
    digits.window.resize(1359, 800)
    digits.wait_until(lambda: left_of_canvas(digits) == WIDTH)
    assert page.side.strip.isVisible()
    assert not page.palette_.isVisible()
    # In the Tab order, the strip comes before the canvas, as the palette does.
    page.side.strip.setFocus()
    for stop in (page.side.strip.roles, page.view):  # type: ignore[attr-defined]  # Only the subclass has this attribute.
        digits.keys(Qt.Key.Key_Tab)
        assert QApplication.focusWidget() is stop
    digits.window.resize(1360, 800)
    digits.wait_until(lambda: left_of_canvas(digits) == 200)
    assert page.palette_.isVisible()
    assert not page.side.strip.isVisible()


def test_a_badge_of_the_strip_adds_one_and_shift_asks_how_many(narrow: Driver) -> None:
    roles = narrow.page.side.strip.roles  # type: ignore[attr-defined]  # Only the subclass has this attribute.
    narrow.choose(roles, "worker")
    assert narrow.counts()["workers"] == 5
    narrow.choose(roles, "worker", SHIFT)
    popup, strip = narrow.page.palette_.popup, narrow.page.side.strip
    assert popup.isVisible()
    assert popup.pos().x() - strip.mapToGlobal(QPoint(0, 0)).x() < 2 * WIDTH
    QTest.keyClick(narrow.page.palette_.popup, Qt.Key.Key_Escape)


def test_a_badge_of_the_strip_is_dropped_on_a_host(narrow: Driver) -> None:
    assert narrow.drop(narrow.page.side.strip.roles, "ps", "gpu-a")  # type: ignore[attr-defined]  # Only the subclass has this attribute.
    assert narrow.value.pins == {"ps-0": "gpu-a"}


def test_the_drawer_lies_over_the_page_and_moves_nothing(narrow: Driver) -> None:
    before = narrow.page.view.geometry()
    QTest.mouseClick(narrow.page.side.strip.focusProxy(), LEFT)
    assert narrow.page.palette_.isVisible()
    assert narrow.page.palette_.geometry().getRect() == (WIDTH, 0, 200, narrow.page.height())
    assert narrow.page.view.geometry() == before
    narrow.choose(narrow.page.palette_.hosts, "gpu-c")
    assert "gpu-c" in narrow.page.scene.hosts
    assert narrow.page.palette_.isVisible()


@pytest.mark.parametrize("way", ["escape", "click", "drag"])
def test_the_drawer_shuts_once_it_is_left(narrow: Driver, way: str) -> None:
    narrow.on_canvas()
    narrow.keys(Qt.Key.Key_A)
    assert narrow.page.palette_.isVisible()
    assert QApplication.focusWidget() is narrow.page.palette_.search
    if way == "escape":
        narrow.keys(Qt.Key.Key_Escape)
        assert QApplication.focusWidget() is narrow.page.view
    elif way == "click":
        viewport = narrow.page.view.viewport()
        QTest.mouseClick(viewport, LEFT, PLAIN, QPoint(viewport.width() - 10, viewport.height() // 2))
    else:
        narrow.page.palette_.roles.drag_begun.emit()
    assert not narrow.page.palette_.isVisible()


def test_letters_and_enter_add_from_the_drawer(narrow: Driver) -> None:
    narrow.on_canvas()
    narrow.keys(Qt.Key.Key_A)
    narrow.type("2 wor")
    narrow.keys(Qt.Key.Key_Return)
    assert narrow.counts()["workers"] == 6


def test_a_jump_into_the_palette_opens_the_drawer(narrow: Driver) -> None:
    narrow.page.jump_to(Problem("warning", "unchecked-host", "never checked", path="hosts.cpu-d"))
    assert narrow.page.palette_.isVisible()
    assert QApplication.focusWidget() is narrow.page.palette_.hosts


def test_the_inspector_is_a_drawer_that_stays_until_it_is_shut(narrow: Driver) -> None:
    page, view = narrow.page, narrow.page.view
    button = page.fields.strip.focusProxy()
    assert not page.inspector.isVisible()
    assert view.mapTo(page, QPoint(view.width(), 0)).x() == page.width() - WIDTH
    # Enter on a replica shows its fields in a drawer over the canvas.
    narrow.select("worker-1")
    before = view.geometry()
    narrow.keys(Qt.Key.Key_Return)
    assert QApplication.focusWidget() is page.inspector.pools.pool.field("replicas")
    assert page.inspector.geometry().getRect() == (page.width() - WIDTH - 288, 0, 288, page.height())
    assert view.geometry() == before
    assert button.isChecked()  # type: ignore[union-attr]  # The value is not None in this test.
    # If the selection changes, the drawer stays open. Esc closes it and returns the focus to the canvas.
    narrow.click("chief-0")
    assert page.inspector.isVisible()
    assert page.inspector.title.text() == "Chief 0"
    narrow.keys(Qt.Key.Key_I, CONTROL)
    assert not page.inspector.isVisible()
    narrow.keys(Qt.Key.Key_I, CONTROL)
    assert page.inspector.isAncestorOf(QApplication.focusWidget())
    narrow.keys(Qt.Key.Key_Escape)
    assert not page.inspector.isVisible()
    assert QApplication.focusWidget() is view
    assert not button.isChecked()  # type: ignore[union-attr]  # The value is not None in this test.
    # The button closes the drawer, too. In a wide window, the inspector is beside the canvas again.
    QTest.mouseClick(button, LEFT)
    assert page.inspector.isVisible()
    QTest.mouseClick(button, LEFT)
    assert not page.inspector.isVisible()
    narrow.window.resize(1360, 800)
    narrow.wait_until(page.inspector.isVisible)
    assert page.fields.strip.isHidden()
    assert view.mapTo(page, QPoint(view.width(), 0)).x() == page.width() - 288


def test_a_preset_closes_the_drawer_so_that_the_canvas_can_be_reached(narrow: Driver) -> None:
    page = narrow.page
    page.side.open()
    QTest.keyClicks(page.palette_.search, "hogwild")
    assert page.palette_.isVisible()
    QTest.keyClick(page.palette_.search, Qt.Key.Key_Return)
    assert narrow.value.strategy.kind == "hogwild"
    assert not page.palette_.isVisible()
    assert QApplication.focusWidget() is page.view
    assert narrow.window.focusWidget() is page.view, "it keeps the focus when a dialog over the window is closed"


def test_in_a_narrow_window_a_dot_stands_for_unsaved_changes(narrow: Driver) -> None:
    bar = narrow.page.bar
    narrow.page.editor.set_name("digits-2")
    assert bar.unsaved.text() == "• unsaved"
    narrow.window.resize(1024, 700)
    narrow.wait_until(lambda: bar.unsaved.text() == "•")
    assert bar.unsaved.toolTip() == bar.unsaved.accessibleName() == "unsaved"
