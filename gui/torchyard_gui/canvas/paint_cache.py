"""Caches for painting: pens, brushes, colours, images, fonts and text widths.

When the theme changes, all caches are cleared except for those of text widths and of shortened and wrapped text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetricsF, QPainter, QPen, QPixmap

from torchyard_gui.theme.icons import paint_role_badge, paint_state, pixmap
from torchyard_gui.theme.theme import mixed_colors, theme

HATCH = 8


@cache
def outline(token: str, width: float = 1.0, dashed: bool = False) -> QPen:
    """Returns a pen whose width is the same at any zoom."""
    pen = QPen(theme().color(token), width)
    pen.setCosmetic(True)
    if dashed:
        pen.setDashPattern([4.0, 3.0])
    return pen


@cache
def hatching(token: str) -> QBrush:
    """Returns a brush of diagonal stripes."""
    tile = QPixmap(HATCH * 2, HATCH * 2)
    tile.setDevicePixelRatio(2)
    tile.fill(Qt.GlobalColor.transparent)
    painter = QPainter(tile)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(theme().color(token), 1.4))
    for shift in (-HATCH, 0, HATCH):
        painter.drawLine(QPointF(shift - 1, HATCH + 1), QPointF(shift + HATCH + 1, -1))
    painter.end()
    return QBrush(tile)


@cache
def mixed(one: str, other: str, part: float) -> QColor:
    """Returns a mixture of the colours of two theme tokens. `part` is the second colour's fraction, from 0 to 1."""
    return mixed_colors(theme().color(one), theme().color(other), part)


Sketch = Callable[[QPainter, QRectF, str], None]


def put_badge(painter: QPainter, role: str, x: float, y: float, size: float) -> None:
    """Paints a role's badge in a square of `size`."""
    _put(painter, paint_role_badge, role, x, y, size)


def put_mark(painter: QPainter, state: str, x: float, y: float, size: float) -> None:
    """Paints a state's mark in a square of `size`."""
    _put(painter, paint_state, state, x, y, size)


def put_pin(painter: QPainter, x: float, y: float, size: float) -> None:
    _put(painter, _pin, "text2", x, y, size)


def _put(painter: QPainter, sketch: Sketch, name: str, x: float, y: float, size: float) -> None:
    # Images are cached at the displayed size, because scaling a pixmap would blur it.
    scale = painter.worldTransform().m11() * painter.device().devicePixelRatioF()
    image = _drawn(sketch, name, max(1, round(size * scale)))
    painter.drawPixmap(QRectF(x, y, size, size), image, QRectF(0, 0, image.width(), image.height()))


@lru_cache(maxsize=256)
def _drawn(sketch: Sketch, name: str, pixels: int) -> QPixmap:
    image = QPixmap(pixels, pixels)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    sketch(painter, QRectF(0, 0, pixels, pixels), name)
    painter.end()
    return image


def _pin(painter: QPainter, rect: QRectF, token: str) -> None:
    size = round(rect.width())
    painter.drawPixmap(0, 0, pixmap("pin", size, token))


@cache
def font(role: str, weight: int = 0, size: int = 0) -> QFont:
    """Returns a font of the theme, with a different weight or size if given."""
    made = QFont(theme().font(role))
    if weight:
        made.setWeight(QFont.Weight(weight))
    if size:
        made.setPixelSize(size)
    return made


@cache
def measure(role: str, weight: int = 0, size: int = 0) -> QFontMetricsF:
    return QFontMetricsF(font(role, weight, size))


@lru_cache(maxsize=4096)
def width_of(text: str, role: str, weight: int = 0, size: int = 0) -> float:
    return measure(role, weight, size).horizontalAdvance(text)


@lru_cache(maxsize=4096)
def elided(text: str, width: int, role: str, weight: int = 0, size: int = 0) -> str:
    if width <= 0:
        return ""
    return measure(role, weight, size).elidedText(text, Qt.TextElideMode.ElideRight, width)


@lru_cache(maxsize=512)
def wrapped(text: str, width: int, role: str) -> tuple[str, ...]:
    """Wraps text at spaces. A word that is wider than `width` is elided."""
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", role) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(elided(word, width, role))
    return tuple(lines)


def write(
    painter: QPainter, x: float, baseline: float, text: str, ink: str, role: str, weight: int = 0, size: int = 0
) -> None:
    """Paints text that starts at `x`, in the colour of the theme token `ink`."""
    painter.setPen(theme().color(ink))
    painter.setFont(font(role, weight, size))
    painter.drawText(QPointF(x, baseline), text)


@cache
def follow_theme() -> None:
    """Registers a handler that clears the theme-dependent caches when the theme changes. Further calls do nothing."""
    theme().changed.connect(_forget)


def _forget() -> None:
    for made in (outline, hatching, mixed, _drawn, font, measure):
        made.cache_clear()
