"""Garbage collection on the GUI thread.

Python collects garbage on the thread whose allocation exceeds a threshold. A collection on a background thread would
destroy Qt objects that are part of reference cycles there, while the GUI thread paints or delivers events, which can
crash the program. Therefore, automatic collection is off, and a timer collects on the GUI thread.
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtGui import QGuiApplication

EVERY_MS = 1000


class GarbageCollector(QObject):
    """Collects garbage while the event loop runs, until its parent is deleted."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        gc.disable()
        timer = QTimer(self, interval=EVERY_MS)
        timer.timeout.connect(self.collect)
        timer.start()

    def collect(self) -> None:
        """Collects the oldest generation whose threshold is exceeded, and all younger ones, as Python itself would.

        Does nothing during a drag, because a collection can take longer than a frame.
        """
        if QGuiApplication.mouseButtons() != Qt.MouseButton.NoButton:
            return
        counts, thresholds = gc.get_count(), gc.get_threshold()
        full = [number for number, count in enumerate(counts) if count > thresholds[number] > 0]
        if full:
            gc.collect(full[-1])
