"""Snapshot of the static calendar, drawn once per drag."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QRect, QRectF
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QWidget


class SnapshotCache:
    """Caches the painted viewport. Call `forget` when calendar, days, selection or scroll position change."""

    def __init__(self, viewport: QWidget, paint: Callable[[QPainter, QRectF], None]):
        self._viewport = viewport
        self._paint = paint
        self._pixmap: QPixmap | None = None

    def forget(self) -> None:
        self._pixmap = None

    def draw(self, painter: QPainter, rect: QRect) -> None:
        """Draws the part within `rect`."""
        ratio = self._viewport.devicePixelRatioF()
        if self._pixmap is None:
            self._pixmap = self._taken(ratio)
        x, y, width, height = (int(side * ratio) for side in (rect.x(), rect.y(), rect.width(), rect.height()))
        painter.drawPixmap(rect, self._pixmap, QRect(x, y, width, height))

    def _taken(self, ratio: float) -> QPixmap:
        pixmap = QPixmap(self._viewport.size() * ratio)
        pixmap.setDevicePixelRatio(ratio)
        painter = QPainter(pixmap)
        self._paint(painter, QRectF(self._viewport.rect()))
        painter.end()
        return pixmap
