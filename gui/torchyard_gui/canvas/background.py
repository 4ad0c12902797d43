"""The canvas below the racks: dots to see it move by, and words where there is nothing."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QPainter, QPixmap

from torchyard_gui.canvas import paint_cache
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

NO_DOTS_BELOW = 0.4

_tiles: dict[tuple[str, int], QBrush] = {}


def paint_dots(painter: QPainter, rect: QRectF, zoom: float) -> None:
    """A dot every 24 in the scene, of the same size on the screen at any zoom."""
    painter.fillRect(rect, theme().brush("s0"))
    if zoom < NO_DOTS_BELOW:
        return
    step = round(M.grid * zoom)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, False)
    # The tile is made for this zoom and shrunk back by it: its dots stay round.
    painter.scale(M.grid / step, M.grid / step)
    back = step / M.grid
    area = QRectF(rect.x() * back, rect.y() * back, rect.width() * back, rect.height() * back)
    painter.fillRect(area, _dots(step))
    painter.restore()


def _dots(step: int) -> QBrush:
    key = (theme().color("dot").name(), step)
    brush = _tiles.get(key)
    if brush is None:
        if len(_tiles) > 64:
            _tiles.clear()
        tile = QPixmap(step, step)
        tile.fill(theme().color("s0"))
        painter = QPainter(tile)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().brush("dot"))
        painter.drawEllipse(QPointF(step / 2, step / 2), 1.2, 1.2)
        painter.end()
        brush = _tiles[key] = QBrush(tile)
    return brush


def paint_empty(painter: QPainter, area: QRectF, title: str, sentence: str) -> None:
    """Words in the middle of the view."""
    painter.save()
    painter.resetTransform()
    middle = area.center()
    painter.setPen(theme().color("text"))
    painter.setFont(paint_cache.font("title"))
    painter.drawText(QRectF(0, middle.y() - 30, area.width(), 24), Qt.AlignmentFlag.AlignCenter, title)
    painter.setPen(theme().color("text2"))
    painter.setFont(paint_cache.font("body"))
    room = QRectF(middle.x() - 165, middle.y() - 2, 330, 80)
    flags = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop | Qt.TextFlag.TextWordWrap
    painter.drawText(room, flags, sentence)
    painter.restore()
