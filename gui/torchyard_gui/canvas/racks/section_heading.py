"""The heading of a section of racks, with its name and a summary of its hosts, GPUs and edges."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QGraphicsItem, QGraphicsRectItem, QStyleOptionGraphicsItem, QWidget

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.layout import SECTION_GAP
from torchyard_gui.theme.theme import theme

ABOVE_RACKS = 6.0
"""Distance between the text and the racks, in screen pixels."""
GAP = 9.0
ASCENT, DESCENT, PAD = 13.0, 4.0, 3.0
"""How far the background extends above, below and beside the baseline of the text, in screen pixels."""
OVER_EDGES = 1.5
"""The Z value of headings, which is above that of the edge layer."""


class SectionHeading(QGraphicsRectItem):
    """Graphics item of a section's heading. The text has a constant size on the screen up to zoom 1, and is elided to
    the section's width.
    """

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.summary = ""
        self._box = Box(0, 0, 0, 0)
        self._zoom = 1.0
        self.setPen(Qt.PenStyle.NoPen)
        self.setZValue(OVER_EDGES)
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)

    def set_box(self, box: Box) -> None:
        if box != self._box:
            self._box = box
            # At a low zoom, the text is taller than the heading and extends into the gap above it.
            self.setRect(box.x, box.y - SECTION_GAP / 2, box.width, box.height + SECTION_GAP / 2)

    def set_name(self, name: str) -> None:
        if name != self.name:
            self.name = name
            self.update()

    def set_summary(self, summary: str) -> None:
        if summary != self.summary:
            self.summary = summary
            self.update()

    def set_zoom(self, zoom: float) -> None:
        if zoom != self._zoom:
            self._zoom = zoom
            self.update()

    def text_rect(self) -> QRectF:
        """Returns the box of the heading's text, in scene coordinates."""
        zoom = min(self._zoom, 1.0)
        name, summary = self._texts()
        width = paint_cache.width_of(name, "strong")
        width += GAP + paint_cache.width_of(summary, "small") if summary else 0
        top = self._box.bottom - (ABOVE_RACKS + ASCENT) / zoom
        return QRectF(self._box.x - PAD / zoom, top, (width + 2 * PAD) / zoom, (ASCENT + DESCENT) / zoom)

    def _texts(self) -> tuple[str, str]:
        """Returns the section's name and summary, elided to the width of the section."""
        width = int(self._box.width * min(self._zoom, 1.0))
        name = paint_cache.elided(self.name, width, "strong")
        left = width - paint_cache.width_of(name, "strong") - GAP
        return name, paint_cache.elided(self.summary, int(left), "small")

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        zoom = min(self._zoom, 1.0)
        painter.fillRect(self.text_rect(), theme().brush("s0"))  # Hides lines between hosts that cross the text.
        painter.translate(self._box.x, self._box.bottom)
        painter.scale(1 / zoom, 1 / zoom)
        name, summary = self._texts()
        x = paint_cache.width_of(name, "strong") + GAP
        paint_cache.write(painter, 0, -ABOVE_RACKS, name, "text", "strong")
        paint_cache.write(painter, x, -ABOVE_RACKS, summary, "text2", "small")
