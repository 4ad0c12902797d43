"""A snapshot of racks and edges, which is shown during a drag.

Without a snapshot, Qt would blend the cached pixmaps of all racks and edges in every frame.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint
from PySide6.QtGui import QPixmap, QRegion
from PySide6.QtWidgets import QGraphicsItem, QWidget

from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.zoom_view import ZoomView

CALM = 3
"""A snapshot is taken after more than this number of mouse moves without a change of the scene."""


class SnapshotCache(QObject):
    """Cache that is used until `end` is called. A change of the scene discards the snapshot, and a new snapshot is
    taken after further mouse moves.
    """

    def __init__(self, view: ZoomView, scene: TopologyScene, carried: QGraphicsItem):
        """Creates the cache without a snapshot.

        The item `carried` and the drop highlight are not part of snapshots.
        """
        super().__init__()
        self._view = view
        self._scene = scene
        self._above = (carried, scene.mark.item)
        self.is_taken = False
        """Whether a snapshot is shown in place of racks and edges."""
        self._calm = 0
        scene.touched.connect(self.drop)

    def moved(self) -> None:
        """Counts a mouse move. Takes a snapshot after more than `CALM` moves without a change of the scene."""
        self._calm += 1
        if self._calm > CALM:
            self._take()

    def drop(self) -> None:
        """Discards the snapshot, if there is one, and lets Qt paint racks and edges again."""
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
        # Without the flag DrawChildren, child widgets of the viewport, such as the zoom buttons, are not rendered.
        viewport.render(picture, QPoint(), QRegion(), QWidget.RenderFlag.DrawWindowBackground)
        for item in seen:
            item.setVisible(True)
        self.is_taken = True
        # Items are made transparent rather than hidden, because Qt discards the cached pixmaps of hidden items.
        self._scene.ground.setOpacity(0)
        self._view.show_snapshot(picture)
