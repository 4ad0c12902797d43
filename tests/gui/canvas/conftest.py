"""Fixtures of a canvas that shows an example topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QPainter
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from tests.gui.canvas import samples
from torchyard_gui.canvas.racks import rack_item
from torchyard_gui.canvas.racks.rack_content import RackContent
from torchyard_gui.canvas.racks.rack_painting import paint_body
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView


class Hand:
    """A simulated mouse on a view; positions are in scene coordinates."""

    def __init__(self, view: CanvasView, scene: TopologyScene):
        self.view = view
        self.scene = scene
        self._held = Qt.MouseButton.NoButton

    def at(self, rect: QRectF) -> QPoint:
        assert not rect.isNull()
        return self.view.mapFromScene(rect.center())

    def chip(self, name: str) -> QPoint:
        return self.at(self.scene.rect_of(name))

    def slot(self, host: str, gpu: int) -> QPoint:
        return self.at(self.scene.rect_of_slot(host, gpu))

    def press(self, at: QPoint, button=Qt.MouseButton.LeftButton, held=Qt.KeyboardModifier.NoModifier) -> None:
        self._held = button
        QTest.mousePress(self.view.viewport(), button, held, at)

    def move(self, at: QPoint) -> None:
        QTest.mouseMove(self.view.viewport(), at)

    def release(self, at: QPoint, held=Qt.KeyboardModifier.NoModifier) -> None:
        QTest.mouseRelease(self.view.viewport(), self._held, held, at)
        self._held = Qt.MouseButton.NoButton

    def click(self, at: QPoint, held=Qt.KeyboardModifier.NoModifier) -> None:
        self.press(at, held=held)
        self.release(at, held)

    def carry(self, start: QPoint, end: QPoint) -> None:
        """Presses the mouse button and moves the mouse in steps, without releasing the button."""
        self.press(start)
        for part in range(1, 6):
            self.move(start + (end - start) * part / 5)

    def drag(self, start: QPoint, end: QPoint) -> None:
        self.carry(start, end)
        self.release(end)


@pytest.fixture
def scene(qapp: object) -> TopologyScene:
    drawn, hosts = samples.drawn_example()
    scene = TopologyScene()
    scene.show_plan(drawn, hosts, also=["gpu-d"])
    return scene


@pytest.fixture
def view(qtbot: QtBot, scene: TopologyScene) -> CanvasView:
    view = CanvasView(scene)
    qtbot.addWidget(view)
    view.resize(888, 796)
    view.show()
    qtbot.waitExposed(view)
    view.setFocus()
    return view


@pytest.fixture
def hand(view: CanvasView, scene: TopologyScene) -> Hand:
    return Hand(view, scene)


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Counts how often racks are painted: `painted("gpu-a")` returns the number since the last call with this rack."""
    counts: Counter[str] = Counter()

    def counting(painter: QPainter, rack: RackContent) -> None:
        counts[rack.key] += 1
        paint_body(painter, rack)

    monkeypatch.setattr(rack_item, "paint_body", counting)
    return lambda key: counts.pop(key, 0)
