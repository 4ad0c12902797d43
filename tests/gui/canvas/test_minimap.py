"""Tests of the minimap: when it is shown, and that clicks, drags and keys on it move the view."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from tests.gui.canvas import samples
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def large(qtbot: QtBot) -> CanvasView:
    """Returns a view of 48 hosts at full size, most of which are outside the visible part."""
    return shown(qtbot, 48)


def shown(qtbot: QtBot, hosts: int) -> CanvasView:
    scene = TopologyScene()
    view = CanvasView(scene)
    scene.setParent(view)
    qtbot.addWidget(view)
    view.resize(900, 700)
    scene.show_plan(*samples.many(hosts, hosts * 4))
    with qtbot.waitExposed(view):
        view.show()
    view.reset()
    return view


def middle(view: CanvasView) -> QPointF:
    return view.mapToScene(view.viewport().rect()).boundingRect().center()


def test_it_is_shown_while_a_large_topology_is_cut_off(large: CanvasView) -> None:
    assert large.minimap.isVisible()
    large.fit()
    assert not large.minimap.isVisible()
    large.minimap.set_wanted(True)
    assert large.minimap.isVisible()
    large.reset()
    large.minimap.set_wanted(False)
    assert not large.minimap.isVisible()


def test_a_small_topology_has_none_unless_it_is_wanted(qtbot: QtBot) -> None:
    view = shown(qtbot, 4)
    view.set_zoom(4.0)
    assert not view.minimap.isVisible()
    view.minimap.set_wanted(True)
    assert view.minimap.isVisible()


def test_it_lies_inside_the_view_and_covers_neither_zoom_buttons_nor_legend(large: CanvasView) -> None:
    for width in (900, 420):
        large.resize(width, 600)
        place = large.minimap.geometry()
        assert large.rect().contains(place)
        assert not place.intersects(large._bar.geometry())
        assert large._legend.isHidden() or not place.intersects(large._legend.geometry())


def test_a_click_moves_the_view_there(large: CanvasView, qtbot: QtBot) -> None:
    scene = large.scene()
    assert isinstance(scene, TopologyScene)
    rack = scene.rect_of_rack(scene.hosts[20]).center()
    QTest.mouseClick(large.minimap, LEFT, pos=large.minimap.point_of(rack).toPoint())
    seen = large.mapToScene(large.viewport().rect()).boundingRect()
    assert seen.contains(rack)
    assert (middle(large) - rack).manhattanLength() < 60, "within two pixels of the map"


def test_a_drag_of_the_frame_moves_the_view_without_a_jump(large: CanvasView) -> None:
    map_ = large.minimap
    start = map_.visible_rect().center().toPoint() + QPoint(4, 3)
    before = middle(large)
    QTest.mousePress(map_, LEFT, pos=start)
    assert (middle(large) - before).manhattanLength() < 3, "the press alone moves nothing"
    QTest.mouseMove(map_, start + QPoint(20, 12))
    QTest.mouseRelease(map_, LEFT, pos=start + QPoint(20, 12))
    moved = map_.point_of(middle(large)) - map_.point_of(before)
    assert abs(moved.x() - 20) < 1.5
    assert abs(moved.y() - 12) < 1.5
    after = middle(large)
    QTest.mouseMove(map_, start)
    assert middle(large) == after, "the drag has ended"


def test_arrow_keys_move_the_view_and_esc_returns_to_it(large: CanvasView) -> None:
    large.minimap.setFocus()
    before = middle(large)
    QTest.keyClick(large.minimap, Qt.Key.Key_Down)
    assert middle(large).y() > before.y() + 50
    QTest.keyClick(large.minimap, Qt.Key.Key_Right)
    assert middle(large).x() > before.x() + 50
    QTest.keyClick(large.minimap, Qt.Key.Key_Escape)
    assert not large.minimap.hasFocus()


def test_hiding_it_leaves_the_focus_on_the_canvas(large: CanvasView) -> None:
    large.minimap.setFocus()
    large.minimap.set_wanted(False)
    assert large.hasFocus()


def test_it_shows_which_racks_have_a_selection_or_a_problem(large: CanvasView) -> None:
    scene = large.scene()
    assert isinstance(scene, TopologyScene)
    scene.set_selection([scene.names[0]])
    scene.show_problems({scene.names[-1]: "no room"})
    tokens = [token for _, token in scene.rack_boxes()]
    assert tokens[0] == "accent"
    assert tokens[-1] == "fail"
    assert set(tokens[1:-1]) == {"line"}


def test_a_fit_leaves_room_for_a_legend_of_several_rows(qtbot: QtBot) -> None:
    view = shown(qtbot, 6)
    scene = view.scene()
    assert isinstance(scene, TopologyScene)
    for width in (900, 360):
        view.resize(width, 500)
        view.fit()
        content = view.mapFromScene(scene.content_rect()).boundingRect()
        assert not view._legend.isHidden()
        assert content.bottom() <= view._legend.y(), width
    assert view._legend.height() > 28, "the legend has several rows in a narrow view"
