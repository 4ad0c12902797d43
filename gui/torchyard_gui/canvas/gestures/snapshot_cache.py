"""Racks and edges as one picture, as long as something is carried over them and they stand still.

Else Qt would find and blend each rack's and each edge's own picture anew in every frame of a drag.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint
from PySide6.QtGui import QPixmap, QRegion
from PySide6.QtWidgets import QGraphicsItem, QWidget

from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.zoom_view import ZoomView

CALM = 3
"""Moves in a row in which nothing changed: the picture is worth its taking."""


class Still(QObject):
    """From its making until `end`. What changes meanwhile is seen at once: the picture goes, and comes back later."""

    def __init__(self, view: ZoomView, scene: TopologyScene, carried: QGraphicsItem):
        """`carried` is no part of the picture, nor is the mark of where it would go."""
        super().__init__()
        self._view = view
        self._scene = scene
        self._above = (carried, scene.mark.item)
        self.is_taken = False
        """Whether a picture stands for racks and edges now."""
        self._calm = 0
        scene.touched.connect(self.drop)

    def moved(self) -> None:
        """What is carried moved, and there is no picture."""
        self._calm += 1
        if self._calm > CALM:
            self._take()

    def drop(self) -> None:
        """Something changed, or is seen elsewhere: racks and edges are painted themselves."""
        self._calm = 0
        if self.is_taken:
            self.is_taken = False
            self._view.lay_picture(None)
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
        # Without the viewport's children, such as the buttons of the zoom.
        viewport.render(picture, QPoint(), QRegion(), QWidget.RenderFlag.DrawWindowBackground)
        for item in seen:
            item.setVisible(True)
        self.is_taken = True
        # Not hidden: Qt would drop the racks' own pictures then, and at the end all would be painted anew.
        self._scene.ground.setOpacity(0)
        self._view.lay_picture(picture)
