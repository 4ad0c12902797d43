"""Racks and edges as one picture, as long as something is carried over them and they stand still.

Else Qt would find and blend each rack's and each edge's own picture anew in every frame of a drag.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint
from PySide6.QtGui import QPixmap, QRegion
from PySide6.QtWidgets import QGraphicsItem, QGraphicsPixmapItem, QGraphicsView, QWidget

from torchyard_gui.canvas.scene import TopologyScene

CALM = 3
"""Moves in a row in which nothing changed: the picture is worth its taking."""


class Still(QObject):
    """From its making until `end`. What changes meanwhile is seen at once: the picture goes, and comes back later."""

    def __init__(self, view: QGraphicsView, scene: TopologyScene, carried: QGraphicsItem):
        """`carried` is no part of the picture, nor is the mark of where it would go."""
        super().__init__()
        self._view = view
        self._scene = scene
        self._above = (carried, scene.mark.item)
        self._item: QGraphicsPixmapItem | None = None
        self._calm = 0
        scene.touched.connect(self.drop)

    @property
    def is_taken(self) -> bool:
        """Whether a picture stands for racks and edges now."""
        return self._item is not None

    def moved(self) -> None:
        """What is carried moved."""
        if self._item is None:
            self._calm += 1
            if self._calm > CALM:
                self._take()

    def drop(self) -> None:
        """Something changed, or is seen elsewhere: racks and edges are painted themselves."""
        self._calm = 0
        item, self._item = self._item, None
        if item is not None:
            self._scene.removeItem(item)
            self._scene.ground.setVisible(True)

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
        # Without the viewport's children, such as the buttons of the zoom.
        viewport.render(picture, QPoint(), QRegion(), QWidget.RenderFlag.DrawWindowBackground)
        for item in seen:
            item.setVisible(True)
        self._item = QGraphicsPixmapItem(picture)
        self._item.setFlag(QGraphicsItem.GraphicsItemFlag.ItemIgnoresTransformations)
        self._item.setPos(self._view.mapToScene(QPoint()))
        self._scene.ground.setVisible(False)
        self._scene.addItem(self._item)
