"""Tests that the snapshot used during a drag looks like the racks and edges, and that any change discards it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QGraphicsPixmapItem

from tests.gui.canvas import samples
from torchyard_gui.canvas.live_state import HostLiveState
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.theme.theme import theme


def is_taken(scene: TopologyScene) -> bool:
    return not scene.ground.opacity()


def seen(view: CanvasView) -> QImage:
    QApplication.processEvents()
    return view.viewport().grab().toImage()


def carry(hand, scene: TopologyScene) -> None:
    """Drags a chip over a slot until a snapshot has been made."""
    start, end = hand.chip("worker-3"), hand.slot("gpu-c", 1)
    hand.carry(start, end)
    for step in range(6):
        hand.move(end + QPoint(step % 2, 0))
    hand.move(end)


def test_with_the_picture_everything_looks_as_without_it(hand, view: CanvasView, scene: TopologyScene) -> None:
    carry(hand, scene)
    assert is_taken(scene)
    with_it = seen(view)
    scene.touched.emit()
    assert not is_taken(scene)
    assert seen(view) == with_it


CHANGES: dict[str, Callable[[TopologyScene, CanvasView], object]] = {
    "hosts": lambda scene, view: scene.show_hosts({"gpu-a": HostLiveState(state="unknown", since="12:00")}),
    "problems": lambda scene, view: scene.show_problems({"worker-0": "It does not fit."}),
    "plan": lambda scene, view: scene.show_plan(*samples.many(4, 8)),
    "zoom": lambda scene, view: view.set_zoom(0.8, QPointF(10, 10)),
    "scrolled": lambda scene, view: view.horizontalScrollBar().setValue(view.horizontalScrollBar().value() + 30),
    "theme": lambda scene, view: theme().set_mode("dark"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_meanwhile_is_seen_at_once(hand, view: CanvasView, scene: TopologyScene, change) -> None:
    mode = theme().mode
    carry(hand, scene)
    before = seen(view)
    try:
        change(scene, view)
        assert not is_taken(scene)
        assert seen(view) != before
    finally:
        theme().set_mode(mode)


@pytest.mark.parametrize("way", ["dropped", "called off"])
def test_racks_are_back_once_nothing_is_carried(hand, view: CanvasView, scene: TopologyScene, way: str) -> None:
    carry(hand, scene)
    if way == "called off":
        QTest.keyClick(view, Qt.Key.Key_Escape)
    hand.release(hand.slot("gpu-c", 1))
    assert not is_taken(scene)
    assert not [item for item in scene.items() if isinstance(item, QGraphicsPixmapItem)]
