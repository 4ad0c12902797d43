"""Drags a role out of the palette on a real display, and prints the result.

    python -m tests.gui.topology.drag_on_a_display drop|escape|drawer

`test_palette_drag` runs this program in a separate process, because Qt's offscreen platform has no drag and drop, and a
process can have only one platform.
"""

from __future__ import annotations

import json
import sys

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from tests.core.examples import host
from tests.gui.topology.page_driver import LEFT, PLAIN, FewFiles, FleetOf, Window
from torchyard_gui.topology.page import TopologyPage

STEPS = 8
STEP_MS = 20
GIVE_UP_MS = 20_000


class Hand:
    """Moves the mouse with the button pressed. Timers move it, because a drag blocks all other code."""

    def __init__(self, window: QWidget, start: QPoint, end: QPoint, escape: bool) -> None:
        self._window = window.windowHandle()
        self._start, self._end, self._escape = start, end, escape
        self._step = 0
        self.is_done = False

    def drag(self) -> None:
        QTest.mousePress(self._window, LEFT, PLAIN, self._start)
        QTimer.singleShot(STEP_MS, self._move)

    def _move(self) -> None:
        self._step += 1
        if self._step <= STEPS:
            # The first move that is long enough starts the drag, and returns only after the drag has ended. Each move
            # needs its own timer, because a timer does not fire again while its handler runs.
            QTimer.singleShot(STEP_MS, self._move)
            QTest.mouseMove(self._window, self._start + (self._end - self._start) * self._step / STEPS)
            return
        if self._escape:
            QTest.keyClick(self._window, Qt.Key.Key_Escape)
        QTest.mouseRelease(self._window, LEFT, PLAIN, self._end)
        self.is_done = True


def main(way: str) -> None:
    app = QApplication([])
    page = TopologyPage(FleetOf([host("gpu-a", 4), host("gpu-b", 4)]), FewFiles())
    window = Window(page)
    window.resize(1280 if way == "drawer" else 1376, 800)
    window.show()
    assert QTest.qWaitForWindowExposed(window)
    page.editor.show_host("gpu-b")
    page.view.fit()
    if way == "drawer":
        page.side.open()
    rows = page.palette_.roles
    item = rows.row_of("worker")
    assert item is not None
    start = rows.viewport().mapTo(window, rows.visualItemRect(item).center())
    rack = page.view.mapFromScene(page.scene.rect_of_rack("gpu-b").topLeft()) + QPoint(30, 12)
    end = page.view.viewport().mapTo(window, rack)
    hand = Hand(window, start, end, way == "escape")
    began: list[bool] = []
    rows.drag_begun.connect(lambda: began.append(True))
    hand.drag()
    waiting = QTimer()
    waiting.setSingleShot(True)
    waiting.start(GIVE_UP_MS)
    while waiting.isActive() and not hand.is_done:
        app.processEvents()
    result = {
        "platform": app.platformName(),
        "dragged": len(began),
        "pins": dict(page.document.value.pins),
        "replicas": sum(pool.replicas for pool in page.document.value.pools),
        "edits": page.editor.stack.count(),
        "palette": page.palette_.isVisible(),
    }
    print(json.dumps(result))
    page.document.start_new()


if __name__ == "__main__":
    main(sys.argv[1])
