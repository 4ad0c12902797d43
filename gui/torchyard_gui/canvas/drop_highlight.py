"""The outline of a drop target. The same outline is also used to highlight a rack briefly."""

from __future__ import annotations

from PySide6.QtCore import QObject, QRectF, Qt, QTimer
from PySide6.QtWidgets import QGraphicsItem, QGraphicsRectItem, QGraphicsScene

from torchyard_gui.canvas import paint_cache
from torchyard_gui.theme.theme import theme

POINT_OUT_MS = 2500


class DropHighlight(QObject):
    """The single outline of a `TopologyScene`, which marks either a drop target or a highlighted rack."""

    def __init__(self, scene: QGraphicsScene, height: float):
        super().__init__(scene)
        self.pointed_out = ""
        """The name of the highlighted host; empty if there is none."""
        self.item = QGraphicsRectItem()
        self.item.setZValue(height)
        self.item.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
        self.item.hide()
        scene.addItem(self.item)
        self._pointing = QTimer(self, singleShot=True, interval=POINT_OUT_MS)
        self._pointing.timeout.connect(self.hide)

    def aim(self, rect: QRectF, *, fits: bool, slot: bool) -> None:
        """Outlines a drop target in a colour that shows whether a drop would be accepted. A null `rect` hides the
        outline.
        """
        self.hide()
        if rect.isNull():
            return
        token = "accent" if fits else "fail"
        self.item.setPen(paint_cache.outline(token, 2))
        self.item.setBrush(theme().color(token, 0.12) if slot else Qt.BrushStyle.NoBrush)
        self.item.setRect(rect)
        self.item.show()

    def point_out(self, host: str, rect: QRectF) -> None:
        """Outlines the rack of a host for `POINT_OUT_MS` milliseconds."""
        self.aim(rect, fits=True, slot=False)
        self.pointed_out = host
        self._pointing.start()

    def hide(self) -> None:
        self._pointing.stop()
        self.pointed_out = ""
        self.item.hide()
