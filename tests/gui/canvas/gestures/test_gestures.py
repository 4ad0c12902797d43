"""Tests of mouse and keyboard input on the canvas, with real events on the viewport."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QMimeData, QPoint, QPointF, Qt
from PySide6.QtGui import (
    QContextMenuEvent,
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QWheelEvent,
)
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QGraphicsPixmapItem

from tests.gui.canvas import samples
from torchyard_gui.canvas.gestures.drag_chips import DragChips
from torchyard_gui.canvas.gestures.drag_preview import TOP
from torchyard_gui.canvas.gestures.palette_drop import HOST_MIME, ROLE_MIME
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView

Key, Button, Modifier = Qt.Key, Qt.MouseButton, Qt.KeyboardModifier


def press(view: CanvasView, key: Qt.Key, held=Modifier.NoModifier) -> None:
    QTest.keyClick(view, key, held)


def ghosts(scene: TopologyScene) -> list[QGraphicsPixmapItem]:
    """Returns the items of the drag preview."""
    pictures = [item for item in scene.items() if isinstance(item, QGraphicsPixmapItem)]
    return [item for item in pictures if (item.parentItem() or item).zValue() == TOP]


# Tests of the selection


def test_a_click_selects_a_chip_and_a_click_beside_it_none(hand, scene: TopologyScene) -> None:
    hand.click(hand.chip("worker-3"))
    assert scene.selection == ["worker-3"]
    hand.click(QPoint(5, 400))
    assert scene.selection == []


def test_ctrl_toggles_and_shift_adds(hand, scene: TopologyScene) -> None:
    hand.click(hand.chip("worker-3"))
    hand.click(hand.chip("worker-5"), Modifier.ControlModifier)
    assert scene.selection == ["worker-3", "worker-5"]
    hand.click(hand.chip("worker-3"), Modifier.ControlModifier)
    assert scene.selection == ["worker-5"]
    hand.click(hand.chip("worker-9"), Modifier.ShiftModifier)
    assert scene.selection == ["worker-5", "worker-9"]


def test_a_click_on_one_of_many_is_meant_for_that_one(hand, scene: TopologyScene) -> None:
    scene.set_selection(["worker-1", "worker-2", "worker-3"])
    hand.click(hand.chip("worker-2"))
    assert scene.selection == ["worker-2"]


def test_a_rubber_band_selects_what_it_touches_and_tells_once(hand, scene: TopologyScene, qtbot) -> None:
    heard: list[list[str]] = []
    scene.selection_changed.connect(heard.append)
    corner = hand.view.mapFromScene(scene.rect_of_rack("gpu-a").topLeft()) - QPoint(10, 5)
    hand.carry(corner, hand.chip("worker-5"))
    assert scene.selection == ["worker-0", "worker-1", "worker-4", "worker-5"]
    assert heard == [], "no signal while it is drawn"
    hand.release(hand.chip("worker-5"))
    assert heard == [["worker-0", "worker-1", "worker-4", "worker-5"]]


def test_escape_calls_a_rubber_band_off(hand, view: CanvasView, scene: TopologyScene) -> None:
    scene.set_selection(["worker-9"])
    hand.carry(QPoint(20, 30), hand.chip("worker-5"))
    press(view, Key.Key_Escape)
    assert scene.selection == ["worker-9"]
    hand.release(hand.chip("worker-5"))
    assert scene.selection == ["worker-9"]


def test_a_right_click_keeps_a_selection_of_many(hand, view: CanvasView, scene: TopologyScene, qtbot) -> None:
    scene.set_selection(["worker-1", "worker-2"])
    for name, expected in (("worker-2", ["worker-1", "worker-2"]), ("worker-7", ["worker-7"])):
        at = hand.chip(name)
        with qtbot.waitSignal(view.context_requested):
            event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, view.viewport().mapToGlobal(at))
            QApplication.sendEvent(view.viewport(), event)
        assert scene.selection == expected


def test_a_double_click_opens(hand, view: CanvasView, qtbot) -> None:
    with qtbot.waitSignal(view.activated) as heard:
        QTest.mouseDClick(view.viewport(), Button.LeftButton, Modifier.NoModifier, hand.chip("worker-4"))
    assert heard.args == ["worker-4"]


# Tests of dragging chips


def test_a_chip_that_is_dropped_on_a_slot_asks_to_be_pinned_there(hand, view: CanvasView, qtbot) -> None:
    with qtbot.waitSignal(view.pin_requested) as heard:
        hand.drag(hand.chip("worker-3"), hand.slot("gpu-c", 1))
    assert heard.args == [["worker-3"], "gpu-c:1"]
    assert not ghosts(view.scene())


def test_a_drop_on_a_racks_header_pins_to_the_host_and_one_beside_the_racks_unpins(hand, view, scene, qtbot) -> None:
    header = view.mapFromScene(scene.rect_of_rack("gpu-c").topLeft() + QPointF(150, 12))
    with qtbot.waitSignal(view.pin_requested) as heard:
        hand.drag(hand.chip("worker-9"), header)
    assert heard.args == [["worker-9"], "gpu-c"]
    with qtbot.waitSignal(view.pin_requested) as heard:
        hand.drag(hand.chip("worker-3"), QPoint(444, 600))
    assert heard.args == [["worker-3"], ""]


def test_the_whole_selection_is_carried(hand, view: CanvasView, scene: TopologyScene, qtbot) -> None:
    scene.set_selection(["worker-1", "worker-2", "worker-5"])
    with qtbot.waitSignal(view.pin_requested) as heard:
        hand.drag(hand.chip("worker-2"), hand.slot("gpu-c", 1))
    assert heard.args == [["worker-1", "worker-2", "worker-5"], "gpu-c:1"]


def test_what_does_not_fit_says_why_while_hovering_and_drops_nothing(hand, view: CanvasView, qtbot) -> None:
    asked: list[str] = []

    def fits(names: list[str], target: str) -> str:
        asked.append(target)
        return "gpu-d:1 is in use by vision until 18:00" if target.startswith("gpu-d") else ""

    view.fits = fits
    end = hand.slot("gpu-d", 1)
    with qtbot.assertNotEmitted(view.pin_requested):
        hand.carry(hand.chip("worker-3"), end)
        gesture = view.gesture
        assert isinstance(gesture, DragChips)
        assert gesture.caption == "gpu-d:1 is in use by vision until 18:00"
        asked.clear()
        for step in range(5):
            hand.move(end + QPoint(step, 0))
        assert asked == [], "asked once a target, not once a pixel"
        hand.release(end)


def test_the_reason_is_never_cut_by_the_views_border(hand, view: CanvasView, scene: TopologyScene) -> None:
    view.fits = lambda names, target: "gpu-d:3 is in use by another user until six in the evening"
    for end in (hand.slot("gpu-d", 3), QPoint(880, 790)):
        hand.carry(hand.chip("worker-3"), end)
        words = max(ghosts(scene), key=lambda item: item.zValue() == 0)
        shown = words.deviceTransform(view.viewportTransform()).mapRect(words.boundingRect())
        assert shown.width() > 200
        assert view.viewport().rect().adjusted(-1, -1, 1, 1).contains(shown.toRect())
        press(view, Key.Key_Escape)
        hand.release(end)


def test_escape_calls_a_drag_off(hand, view: CanvasView, scene: TopologyScene, qtbot) -> None:
    with qtbot.assertNotEmitted(view.pin_requested):
        hand.carry(hand.chip("worker-3"), hand.slot("gpu-c", 1))
        press(view, Key.Key_Escape)
        assert view.gesture is None
        hand.release(hand.slot("gpu-c", 1))
    assert not ghosts(scene)


def test_a_shaky_click_carries_nothing_and_neither_does_a_drop_on_its_own_slot(hand, view: CanvasView, qtbot) -> None:
    start = hand.chip("worker-3")
    with qtbot.assertNotEmitted(view.pin_requested):
        hand.press(start)
        hand.move(start + QPoint(2, 1))
        hand.release(start + QPoint(2, 1))
        hand.carry(start, start + QPoint(60, 60))
        hand.release(start + QPoint(5, 3))


def test_a_picture_of_a_run_can_be_selected_but_not_changed(hand, view: CanvasView, scene, qtbot) -> None:
    view.set_editable(False)
    with qtbot.assertNotEmitted(view.pin_requested), qtbot.assertNotEmitted(view.delete_requested):
        hand.drag(hand.chip("worker-3"), hand.slot("gpu-c", 1))
        press(view, Key.Key_Delete)
    assert scene.selection == ["worker-3"]


# Tests of dragging roles from the palette


def over(view: CanvasView, kind: type, at: QPoint, mime: str, text: str) -> QDropEvent:
    data = QMimeData()
    data.setData(mime, text.encode())
    place = at if kind in (QDragEnterEvent, QDragMoveEvent) else QPointF(at)
    event = kind(place, Qt.DropAction.CopyAction, data, Button.LeftButton, Modifier.NoModifier)
    QApplication.sendEvent(view.viewport(), event)
    return event


def test_a_role_is_dropped_on_a_host_or_on_none(hand, view: CanvasView, scene: TopologyScene, qtbot) -> None:
    for at, host in ((hand.slot("gpu-c", 1), "gpu-c"), (QPoint(444, 600), "")):
        with qtbot.waitSignal(view.role_dropped) as heard:
            over(view, QDragEnterEvent, at, ROLE_MIME, "worker")
            over(view, QDragMoveEvent, at, ROLE_MIME, "worker")
            over(view, QDropEvent, at, ROLE_MIME, "worker")
        assert heard.args == ["worker", host]


def test_a_role_that_does_not_fit_is_not_taken(hand, view: CanvasView, qtbot) -> None:
    view.role_fits = lambda role, host: "gpu-d has no free GPU" if host == "gpu-d" else ""
    at = hand.slot("gpu-d", 1)
    with qtbot.assertNotEmitted(view.role_dropped):
        over(view, QDragEnterEvent, at, ROLE_MIME, "worker")
        assert not over(view, QDragMoveEvent, at, ROLE_MIME, "worker").isAccepted()
        QApplication.sendEvent(view.viewport(), QDragLeaveEvent())


def test_a_host_can_be_dropped_and_other_things_cannot(view: CanvasView, qtbot) -> None:
    with qtbot.waitSignal(view.host_dropped) as heard:
        over(view, QDragEnterEvent, QPoint(400, 600), HOST_MIME, "gpu-z")
        over(view, QDropEvent, QPoint(400, 600), HOST_MIME, "gpu-z")
    assert heard.args == ["gpu-z"]
    assert not over(view, QDragEnterEvent, QPoint(400, 600), "text/plain", "x").isAccepted()


# Tests of keyboard commands


def test_arrows_move_the_selection_and_shift_extends_it(view: CanvasView, scene: TopologyScene) -> None:
    press(view, Key.Key_Right)
    assert len(scene.selection) == 1, "the first arrow takes the first chip"
    scene.set_focused("worker-0")
    press(view, Key.Key_Right)
    assert scene.selection == ["worker-1"]
    press(view, Key.Key_Down, Modifier.ShiftModifier)
    assert scene.selection == ["worker-1", "worker-5"]
    press(view, Key.Key_Left)
    assert scene.selection == ["worker-4"]


def test_ctrl_a_selects_all_escape_none_and_delete_asks(view: CanvasView, scene: TopologyScene, qtbot) -> None:
    press(view, Key.Key_A, Modifier.ControlModifier)
    assert scene.selection == scene.names
    press(view, Key.Key_Escape)
    assert scene.selection == []
    scene.set_selection(["worker-2"])
    with qtbot.waitSignal(view.delete_requested) as heard:
        press(view, Key.Key_Delete)
    assert heard.args == [["worker-2"]]


def test_enter_opens_what_the_keyboard_is_on(view: CanvasView, scene: TopologyScene, qtbot) -> None:
    scene.set_selection(["worker-6"])
    with qtbot.waitSignal(view.activated) as heard:
        press(view, Key.Key_Return)
    assert heard.args == ["worker-6"]


def test_the_selection_is_described_for_screen_readers(view: CanvasView, scene: TopologyScene) -> None:
    scene.set_selection(["worker-8"])
    assert view.accessibleDescription() == "worker-8, GPU 0 on gpu-b"
    scene.set_selection(["worker-8", "worker-9"])
    assert view.accessibleDescription() == "2 replicas selected"


# Tests of zooming and panning


def test_plus_minus_and_zero_zoom_between_5_and_400_percent(view: CanvasView) -> None:
    press(view, Key.Key_Plus)
    assert view.zoom == pytest.approx(1.2)
    press(view, Key.Key_0)
    assert view.zoom == 1.0
    for _ in range(30):
        press(view, Key.Key_Minus)
    assert view.zoom == pytest.approx(0.05)
    for _ in range(60):
        press(view, Key.Key_Plus)
    assert view.zoom == pytest.approx(4.0)


@pytest.mark.parametrize("notches", [2, -3])
def test_the_wheel_zooms_at_the_cursor(hand, view: CanvasView, scene: TopologyScene, notches: int) -> None:
    at = hand.chip("worker-10")
    before = view.mapToScene(at)
    for _ in range(abs(notches)):
        event = QWheelEvent(
            QPointF(at), QPointF(view.viewport().mapToGlobal(at)), QPoint(), QPoint(0, 120 if notches > 0 else -120),
            Button.NoButton, Modifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
        )  # fmt: skip
        QApplication.sendEvent(view.viewport(), event)
    assert view.zoom == pytest.approx(1.2**notches)
    after = view.mapToScene(at)
    assert (after - before).manhattanLength() < 4


def test_fit_shows_all_and_holds_while_the_window_changes(view: CanvasView, scene: TopologyScene) -> None:
    for width, height in ((500, 400), (1600, 500), (888, 796)):
        view.resize(width, height)
        QApplication.processEvents()
        seen = view.mapToScene(view.viewport().rect()).boundingRect()
        assert seen.contains(scene.content_rect()), f"at {width} x {height}"


@pytest.mark.parametrize("how", ["middle", "space"])
def test_middle_drag_and_space_pan(hand, view: CanvasView, how: str) -> None:
    start = QPoint(444, 650)
    before = view.mapToScene(start)
    if how == "space":
        QTest.keyPress(view, Key.Key_Space)
    hand.press(start, Button.MiddleButton if how == "middle" else Button.LeftButton)
    hand.move(start + QPoint(-60, 30))
    hand.release(start + QPoint(-60, 30))
    if how == "space":
        QTest.keyRelease(view, Key.Key_Space)
    moved = view.mapToScene(start) - before
    assert (moved - QPointF(60, -30)).manhattanLength() < 2


def test_a_replica_can_be_brought_into_view(view: CanvasView, scene: TopologyScene) -> None:
    crowd, fleet = samples.many(128, 1000)
    scene.show_plan(crowd, fleet)
    assert view.zoom < 0.33
    view.show_replica("worker-900")
    seen = view.mapToScene(view.viewport().rect()).boundingRect()
    assert seen.contains(scene.rect_of("worker-900"))
    assert view.zoom >= 0.7
    assert scene.selection == ["worker-900"]


def test_cells_of_tiles_can_be_clicked(hand, view: CanvasView, scene: TopologyScene) -> None:
    crowd, fleet = samples.many(128, 1000)
    scene.show_plan(crowd, fleet)
    hand.click(hand.chip("worker-321"))
    assert scene.selection == ["worker-321"]


def test_hovering_marks_the_chip_below_the_mouse(hand, view: CanvasView, scene: TopologyScene) -> None:
    hand.move(hand.chip("worker-2"))
    assert scene._hovered == "worker-2"
    QApplication.sendEvent(view, QEvent(QEvent.Type.Leave))
    assert scene._hovered == ""
