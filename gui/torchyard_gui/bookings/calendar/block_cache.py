"""Cache of rounded block corners.

`drawRoundedRect` takes 0.2 ms, and a calendar draws thousands of blocks. The corners are therefore drawn once for each
appearance of a block and then copied. The rest of a block is painted with filled rectangles.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPixmap

from torchyard_gui.theme.theme import mixed_colors, theme
from torchyard_gui.theme.tokens import METRICS as M

CORNER = M.block_radius + 1
Look = tuple[str, bool, bool]


class BlockCache:
    """Draws block bodies with cached corners. Call `forget` when the theme changes."""

    def __init__(self) -> None:
        self._corners: dict[tuple[Look, float], tuple[QPixmap, ...]] = {}
        self._inks: dict[Look, tuple[QColor, QColor]] = {}

    def forget(self) -> None:
        self._corners.clear()
        self._inks.clear()

    def draw(self, painter: QPainter, rect: QRectF, token: str, own: bool, is_selected: bool) -> None:
        """Draws the body of a block. The coordinates of `rect` must be whole pixels."""
        look = token, own, is_selected
        fill, line = self._ink(look)
        if rect.width() < 2 * CORNER or rect.height() < 2 * CORNER:
            painter.fillRect(rect, fill)
            return
        left, top, width, height = rect.left(), rect.top(), rect.width(), rect.height()
        right, bottom, inner = left + width, top + height, width - 2 * CORNER
        painter.fillRect(QRectF(left, top + CORNER, width, height - 2 * CORNER), fill)
        painter.fillRect(QRectF(left + CORNER, top, inner, CORNER), fill)
        painter.fillRect(QRectF(left + CORNER, bottom - CORNER, inner, CORNER), fill)
        thick = 2 if is_selected else 1
        painter.fillRect(QRectF(left + CORNER, top, inner, thick), line)
        painter.fillRect(QRectF(left + CORNER, bottom - thick, inner, thick), line)
        painter.fillRect(QRectF(left, top + CORNER, thick, height - 2 * CORNER), line)
        painter.fillRect(QRectF(right - thick, top + CORNER, thick, height - 2 * CORNER), line)
        corners = self._corner(look, painter.device().devicePixelRatioF())
        for pixmap, x, y in zip(
            corners,
            (left, right - CORNER, left, right - CORNER),
            (top, top, bottom - CORNER, bottom - CORNER),
            strict=True,
        ):
            painter.drawPixmap(QPointF(x, y), pixmap)

    def _ink(self, look: Look) -> tuple[QColor, QColor]:
        """Returns the colours of a block's body (the owner's colour mixed with the background) and of its outline."""
        found = self._inks.get(look)
        if found is None:
            token, own, is_selected = look
            tint = (0.24 if theme().is_dark else 0.22) if own else (0.17 if theme().is_dark else 0.11)
            color = theme().color(token)
            fill = mixed_colors(theme().color("s2"), color, tint)
            line = theme().color("accent") if is_selected else mixed_colors(fill, color, 1.0 if own else 0.45)
            found = self._inks[look] = fill, line
        return found

    def _corner(self, look: Look, ratio: float) -> tuple[QPixmap, ...]:
        """Returns pixmaps of the four corners: top left, top right, bottom left, bottom right."""
        found = self._corners.get((look, ratio))
        if found is None:
            fill, line = self._ink(look)
            side = 2 * CORNER
            whole = QPixmap(round(side * ratio), round(side * ratio))
            whole.setDevicePixelRatio(ratio)
            whole.fill(Qt.GlobalColor.transparent)
            painter = QPainter(whole)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            thick = 2.0 if look[2] else 1.0
            painter.setPen(QPen(line, thick))
            painter.setBrush(fill)
            half = thick / 2
            painter.drawRoundedRect(QRectF(half, half, side - thick, side - thick), M.block_radius, M.block_radius)
            painter.end()
            pixels = round(CORNER * ratio)
            found = tuple(whole.copy(x, y, pixels, pixels) for y in (0, pixels) for x in (0, pixels))
            self._corners[look, ratio] = found
        return found
