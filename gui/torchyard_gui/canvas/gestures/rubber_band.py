"""The gesture that selects chips with a rubber band. Ctrl or Shift adds the chips to the previous selection."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtWidgets import QGraphicsRectItem, QGraphicsView

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.gestures.drag_preview import TOP
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.gesture import Gesture


class RubberBand(Gesture):
    def __init__(self, view: QGraphicsView, scene: TopologyScene, position: QPoint, keep: bool):
        self._view = view
        self._scene = scene
        self._start = view.mapToScene(position)
        self._before = scene.selection
        self._kept = self._before if keep else []
        self._band = QGraphicsRectItem()
        self._band.setZValue(TOP)
        self._band.setPen(paint_cache.outline("accent"))
        self._band.setBrush(theme().color("accent", 0.10))
        self._band.setAcceptedMouseButtons(Qt.MouseButton.NoButton)
        scene.addItem(self._band)
        scene.preview_selection(self._kept)

    def move(self, position: QPoint) -> None:
        rect = QRectF(self._start, self._view.mapToScene(position)).normalized()
        self._band.setRect(rect)
        self._scene.preview_selection([*self._kept, *self._scene.replicas_in(rect)])

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._scene.removeItem(self._band)
        if self._scene.selection != self._before:
            self._scene.announce_selection()

    def cancel(self) -> None:
        self._scene.removeItem(self._band)
        self._scene.preview_selection(self._before)
