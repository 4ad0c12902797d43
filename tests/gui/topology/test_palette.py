"""Tests of the palette's rows with pointer and keyboard, and of Esc in the palette's search field."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPersistentModelIndex, QPointF, Qt
from PySide6.QtGui import QColor, QEnterEvent, QHoverEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.core.examples import host
from tests.gui.geometry.painted_text import painted_texts
from tests.gui.topology.conftest import MakeDriver
from tests.gui.topology.page_driver import Driver
from torchyard_gui.bridge.host_states import HostState, state_name
from torchyard_gui.canvas.racks.rack_painting import host_mark
from torchyard_gui.theme.icons import state_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.palette_list import PaletteList


def has_ring(rows: PaletteList) -> bool:
    """Returns whether a focus ring is drawn around the current row."""
    image = rows.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    rect = rows.visualItemRect(rows.currentItem())
    accent = theme().color("accent")
    column = [QColor(image.pixel(rect.left() + 1, y)) for y in range(rect.top() + 6, rect.bottom() - 6)]
    return all(abs(color.red() - accent.red()) < 40 and abs(color.blue() - accent.blue()) < 40 for color in column)


def test_rows_keep_hover_and_focus_when_their_counts_change(empty: Driver) -> None:
    rows = empty.page.palette_.hosts
    rows.setCurrentRow(1)
    kept = QPersistentModelIndex(rows.model().index(1, 0))
    empty.fleet.hosts[1] = host("gpu-b", 4, busy=(0, 1, 2, 3))
    empty.fleet.facts_changed.emit()
    assert kept.isValid()
    assert kept.data() == "gpu-b"
    assert rows.item(1).data(Qt.ItemDataRole.AccessibleTextRole) == "gpu-b, 0 of 4 free"
    assert rows.currentRow() == 1


def test_the_focus_ring_is_for_the_keyboard(empty: Driver) -> None:
    rows = empty.page.palette_.roles
    empty.choose(rows, "worker")
    assert rows.hasFocus()
    assert rows.current_key() == "worker"
    assert not has_ring(rows)
    QTest.keyClick(rows, Qt.Key.Key_Down)
    assert has_ring(rows)
    empty.choose(rows, "ps")
    assert not has_ring(rows)
    empty.on_canvas()
    rows.setFocus(Qt.FocusReason.TabFocusReason)
    assert has_ring(rows)


def test_escape_clears_the_search_and_then_returns_to_the_canvas(empty: Driver) -> None:
    palette = empty.page.palette_
    empty.on_canvas()
    empty.keys(Qt.Key.Key_A)
    empty.type("work")
    empty.keys(Qt.Key.Key_Down)
    assert palette.roles.hasFocus()
    empty.keys(Qt.Key.Key_Escape)
    assert palette.search.hasFocus()
    assert palette.search.text() == ""
    assert palette.hosts.isVisible()
    empty.keys(Qt.Key.Key_Escape)
    assert QApplication.focusWidget() is empty.page.view


def test_hosts_have_the_same_mark_as_on_the_fleet_page(empty: Driver) -> None:
    palette = empty.page.palette_
    empty.page.editor.show_host("gpu-a")
    for state in HostState:
        empty.fleet.other["gpu-a"] = state
        empty.fleet.facts_changed.emit()
        row = palette.hosts.row_of("gpu-a")
        assert row is not None
        assert row.icon().pixmap(18, 18).toImage() == state_icon(state.mark).pixmap(18, 18).toImage(), state
        assert row.toolTip().startswith(f"gpu-a: {state_name(state)}, ")
        rack = empty.page.scene._racks["gpu-a"]
        assert host_mark(rack.content, rack.host, False) == state.mark


def test_hosts_of_one_domain_stay_distinguishable(make_driver: MakeDriver) -> None:
    names = [f"rack07-gpu-{letter}.training.seoul.example.internal" for letter in "ab"]
    driver = make_driver([host(name, 4) for name in names])
    shown = {text.text for text in painted_texts(driver.page.palette_.hosts.viewport()) if "rack" in text.text}
    assert len(shown) == 2, shown
    assert {text[-1] for text in shown} == {"a", "b"}


def test_no_row_is_highlighted_after_the_pointer_has_left(empty: Driver) -> None:
    rows = empty.page.palette_.roles
    viewport, at = rows.viewport(), QPointF(rows.visualItemRect(rows.item(1)).center())
    place = viewport.mapToGlobal(at)
    plain = rows.grab().toImage()
    hover = QHoverEvent(QEvent.Type.HoverMove, at, place, QPointF(-1, -1))
    QApplication.sendEvent(viewport, QEnterEvent(at, QPointF(viewport.mapTo(rows.window(), at)), place))
    QApplication.sendEvent(viewport, hover)
    assert rows.grab().toImage() != plain
    QApplication.sendEvent(viewport, QEvent(QEvent.Type.Leave))
    QApplication.sendEvent(viewport, hover)  # When a drag ends, Qt sends a hover event after the leave event.
    assert rows.grab().toImage() == plain
