"""The frame of a cluster around the racks of its nodes, with the cluster's name and a summary of the nodes."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QGraphicsItem, QGraphicsRectItem, QStyleOptionGraphicsItem, QWidget

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.section_heading import SectionHeading
from torchyard_gui.theme.tokens import METRICS as M

BESIDE = 22.0
"""Distance between the racks or edges and the frame."""
HEAD = 34.0
"""Height of the space for the cluster's name, above the racks and edges."""


class ClusterFrame(QGraphicsRectItem):
    """Graphics item of a cluster's frame behind the racks. The heading has a constant screen size up to zoom 1."""

    def __init__(self, ground: QGraphicsItem):
        super().__init__(ground)
        self.setZValue(-1.0)
        self.heading = SectionHeading("")
        self.heading.setParentItem(ground)
        self._box = Box(0, 0, 0, 0)
        self.hide()

    def hide(self) -> None:
        super().hide()
        self.heading.hide()

    def show_cluster(self, name: str, summary: str, inside: Box) -> None:
        """Shows the frame around a box of racks and edges."""
        top = inside.y - BESIDE / 2 - HEAD
        self._box = Box(inside.x - BESIDE, top, inside.width + 2 * BESIDE, inside.bottom + BESIDE - top)
        self.setRect(QRectF(*self._box))
        self.heading.set_name(name)
        self.heading.set_summary(summary)
        self.heading.set_box(Box(inside.x, self._box.y, inside.width, HEAD))
        self.show()
        self.heading.show()

    def set_zoom(self, zoom: float) -> None:
        self.heading.set_zoom(zoom)

    def bounds(self) -> QRectF:
        """Returns the area of the frame with its heading."""
        return QRectF(*self._box).united(self.heading.text_rect())

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(paint_cache.outline("line"))
        painter.drawRoundedRect(QRectF(*self._box), M.radius * 2, M.radius * 2)
