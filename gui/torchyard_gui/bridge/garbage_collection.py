"""Garbage collection on the GUI thread.

Python collects garbage on the thread whose allocation exceeds a threshold. A collection on a background thread would
destroy Qt objects of reference cycles on that thread while the GUI thread paints or delivers events, which can crash
the program. Therefore, automatic collection is off, and a timer collects on the GUI thread.
"""

from __future__ import annotations

import gc
import sys
import time

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtGui import QGuiApplication

EVERY_MS = 1000
LONGEST_DRAG_S = 10
"""Number of seconds after which a pressed mouse button no longer delays collection.

Qt can miss the release of a button, for example if another program has grabbed the pointer.
"""
GROWTH = 1.25
"""Factor by which memory must have grown since the last full collection before the next one.

A full collection takes 0.1 s with 128 hosts. Memory is measured in blocks of Python's allocator: gc.get_objects() would
briefly hold a reference to each object, and another thread that builds a tuple at that time raises a SystemError if
the tuple has a second reference.
"""


class GarbageCollector(QObject):
    """Collects garbage while the event loop runs, until its parent is deleted."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        gc.disable()
        self._blocks = 0
        """Number of blocks of memory after the last full collection."""
        self._pressed_at: float | None = None
        timer = QTimer(self, interval=EVERY_MS)
        timer.timeout.connect(self.collect)
        timer.start()

    def collect(self) -> None:
        """Collects the generations whose thresholds are exceeded, as Python itself would.

        Does nothing during a drag, because a collection can take longer than one frame.
        """
        if self._is_dragging():
            return
        young, middle, old = (count > limit for count, limit in zip(gc.get_count(), gc.get_threshold(), strict=True))
        if middle and old and sys.getallocatedblocks() >= GROWTH * self._blocks:
            gc.collect()
            self._blocks = sys.getallocatedblocks()
        elif middle:
            gc.collect(1)
        elif young:
            gc.collect(0)

    def _is_dragging(self) -> bool:
        if QGuiApplication.mouseButtons() == Qt.MouseButton.NoButton:
            self._pressed_at = None
            return False
        if self._pressed_at is None:
            self._pressed_at = time.monotonic()
        return time.monotonic() - self._pressed_at < LONGEST_DRAG_S
