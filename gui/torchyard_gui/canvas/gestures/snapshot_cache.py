"""Snapshot of racks and edges during a drag.

Without it, Qt would blend the cached pixmap of each rack and edge in every frame.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint
from PySide6.QtGui import QPixmap, QRegion
from PySide6.QtWidgets import QGraphicsItem, QWidget

from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.zoom_view import ZoomView

CALM = 3
"""Moves without a change before a snapshot is worthwhile."""


class SnapshotCache(QObject):
    """In use from its creation until `end`. A change discards the snapshot, which is taken again later."""

    def __init__(self, view: ZoomView, scene: TopologyScene, carried: QGraphicsItem):
        """Starts without a snapshot. `carried` items and the drop highlight are not part of it."""
        super().__init__()
        self._view = view
        self._scene = scene
        self._above = (carried, scene.mark.item)
        self.is_taken = False
        """Whether a snapshot is shown in place of racks and edges."""
        self._calm = 0
        scene.touched.connect(self.drop)

    def moved(self) -> None:
        """Handles a move; takes the snapshot after enough moves without a change."""
        self._calm += 1
        if self._calm > CALM:
            self._take()

    def drop(self) -> None:
        """Discards the snapshot after a change."""
        self._calm = 0
        if self.is_taken:
            self.is_taken = False
            self._view.show_snapshot(None)
            self._scene.ground.setOpacity(1)

    def end(self) -> None:
        self.drop()
        self._scene.touched.disconnect(self.drop)

    def _take(self) -> None:
        viewport, ratio = self._view.viewport(), self._view.devicePixelRatioF()
        picture = QPixmap(viewport.size() * ratio)
        picture.setDevicePixelRatio(ratio)
        seen = [item for item in self._above if item.isVisible()]
        for item in seen:
            item.setVisible(False)
        # Excludes the viewport's child widgets, such as the zoom buttons.
        viewport.render(picture, QPoint(), QRegion(), QWidget.RenderFlag.DrawWindowBackground)
        for item in seen:
            item.setVisible(True)
        self.is_taken = True
        # Opacity instead of hiding, because Qt would discard the cached pixmaps of hidden items.
        self._scene.ground.setOpacity(0)
        self._view.show_snapshot(picture)
