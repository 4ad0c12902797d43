"""The preview at the pointer during a drag: a stack of chips, and the effect of a drop or the reason for a refusal.

Both parts are pixmap items, which are repainted only when their content changes, so moving them runs almost no Python
code.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPoint, QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QGraphicsItem, QGraphicsPixmapItem, QGraphicsScene

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.chip_painting import ChipState, paint_chip
from torchyard_gui.canvas.racks.rack_content import ChipContent
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

TOP = 1000.0
CAPTION_WIDTH = 280
OFFSET = 4
"""Distance in pixels between chips and caption."""
STACK = 4
"""Offset in pixels between two chips in the stack."""
ROUND = 2
"""Margin in pixels around a chip, in which the selection ring is drawn."""
LINE = 16
MOST_LINES = 4
MOST_CHIPS = 3
AWAY = (14.0, 18.0)
"""Offset in pixels from the cursor to the caption if there are no chips."""


class DragPreview:
    """Preview that stays in the scene until `remove` is called. It has the same size on the screen at any zoom."""

    def __init__(self, scene: QGraphicsScene, chips: Sequence[ChipContent], grip: QPoint, ratio: float = 1.0):
        """Adds the preview to the scene.

        Args:
            chips: The dragged chips. If there are none, only the caption is shown.
            grip: Position of the pointer within the first chip.
        """
        self.caption = ""
        self.is_refused = False
        self._scene = scene
        self._ratio = ratio
        self.item = QGraphicsPixmapItem()
        self._words = QGraphicsPixmapItem(self.item)
        self._above = 0.0
        self._place = AWAY
        self._shift = AWAY
        self._size = (0, 0)
        self._captions: dict[tuple[str, bool], QPixmap] = {}
        """Cache of painted captions, because the same captions recur during a drag."""
        if chips:
            depth = min(len(chips), MOST_CHIPS)
            picture = self._paint_stack(chips[:depth], len(chips))
            self.item.setPixmap(picture)
            self.item.setOffset(-grip.x() - ROUND, -grip.y() - ROUND)
            height = M.slot_height + (depth - 1) * STACK
            self._place = self._shift = (float(-grip.x()), float(height - grip.y() + OFFSET))
            self._above = float(-grip.y() - OFFSET)
        self._words.setPos(*self._shift)
        self.item.setFlag(QGraphicsItem.GraphicsItemFlag.ItemIgnoresTransformations)
        self.item.setZValue(TOP)
        scene.addItem(self.item)

    def remove(self) -> None:
        self._scene.removeItem(self.item)

    def move(self, point: QPointF, position: QPoint, room: tuple[int, int]) -> None:
        """Moves the preview and keeps the caption inside the view.

        Args:
            point: Position of the pointer in the scene.
            position: Position of the pointer in the view.
            room: Width and height of the view.
        """
        self.item.setPos(point)
        left, top = self._place
        width, height = self._size
        across, down = position.toTuple()
        left = min(left, room[0] - across - width - OFFSET)
        if down + top + height > room[1]:
            top = self._above - height
        if (left, top) != self._shift:
            self._shift = left, top
            self._words.setPos(left, top)

    def say(self, caption: str, refused: bool) -> None:
        """Sets the caption. With `refused`, the caption has the colour of failures."""
        if (caption, refused) == (self.caption, self.is_refused):
            return
        self.caption, self.is_refused = caption, refused
        picture = self._captions.get((caption, refused))
        if picture is None:
            picture = self._paint_words(paint_cache.wrapped(caption, CAPTION_WIDTH, "small")[:MOST_LINES], refused)
            self._captions[caption, refused] = picture
        self._size = (round(picture.width() / self._ratio), round(picture.height() / self._ratio))
        self._words.setPixmap(picture)

    def _blank(self, width: float, height: float) -> QPixmap:
        picture = QPixmap(round(width * self._ratio), round(height * self._ratio))
        picture.setDevicePixelRatio(self._ratio)
        picture.fill(Qt.GlobalColor.transparent)
        return picture

    def _paint_stack(self, chips: Sequence[ChipContent], count: int) -> QPixmap:
        more = (len(chips) - 1) * STACK
        picture = self._blank(M.slot_width + more + 2 * ROUND + 6, M.slot_height + more + 2 * ROUND + 2)
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setOpacity(0.94)
        for depth in reversed(range(len(chips))):
            box = Box(ROUND + depth * STACK, ROUND + depth * STACK, M.slot_width, M.slot_height)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().color("shadow", 0.10))
            painter.drawRoundedRect(QRectF(*box.moved(1, 2)), M.radius_small, M.radius_small)
            paint_chip(painter, (box,), chips[depth], None, ChipState(selected=True))
        painter.setOpacity(1)
        if count > 1:
            text = str(count)
            width = max(18.0, paint_cache.width_of(text, "tiny", 600) + 10)
            pill = QRectF(picture.width() / self._ratio - width, 0, width, 18)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().brush("accent"))
            painter.drawRoundedRect(pill, 9, 9)
            painter.setPen(theme().color("on_accent"))
            painter.setFont(paint_cache.font("tiny", 600))
            painter.drawText(pill, Qt.AlignmentFlag.AlignCenter, text)
        painter.end()
        return picture

    def _paint_words(self, lines: Sequence[str], refused: bool) -> QPixmap:
        if not lines:
            return QPixmap()
        x = 28.0 if refused else 10.0
        width = max(paint_cache.width_of(line, "small") for line in lines) + x + 10
        picture = self._blank(width, len(lines) * LINE + 8)
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(paint_cache.outline("fail" if refused else "line"))
        painter.setBrush(theme().brush("fail_soft" if refused else "s2"))
        card = QRectF(0.5, 0.5, picture.width() / self._ratio - 1, picture.height() / self._ratio - 1)
        painter.drawRoundedRect(card, M.radius_small, M.radius_small)
        if refused:
            paint_cache.put_mark(painter, "failed", 8, 5, 14)
        for number, line in enumerate(lines):
            paint_cache.write(painter, x, 16.5 + number * LINE, line, "fail" if refused else "text", "small")
        painter.end()
        return picture
