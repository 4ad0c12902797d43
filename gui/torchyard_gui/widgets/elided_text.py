"""Paints a single line of text in a rectangle."""

from __future__ import annotations

from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QPainter

from torchyard_gui.theme.theme import theme

LEFT, RIGHT = Qt.AlignmentFlag.AlignLeft, Qt.AlignmentFlag.AlignRight


def host_elide_mode(name: str) -> Qt.TextElideMode:
    """Returns the elide mode for a host name. A name with a domain is elided at its end, because the names of a domain
    differ at their beginnings.
    """
    return Qt.TextElideMode.ElideRight if "." in name else Qt.TextElideMode.ElideMiddle


def draw_elided(
    painter: QPainter,
    rect: QRect | QRectF,
    text: str,
    font: str = "",
    ink: str = "",
    side: Qt.AlignmentFlag = LEFT,
    mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
) -> int:
    """Paints a line, vertically centred and shortened to the width of `rect`. Returns the width of the painted text.

    Args:
        font: Role of a theme font.
        ink: Colour token.
    """
    if font:
        painter.setFont(theme().font(font))
    if ink:
        painter.setPen(theme().pen(ink))
    metrics = painter.fontMetrics()
    shown = metrics.elidedText(text, mode, int(rect.width()))
    painter.drawText(rect, int(side | Qt.AlignmentFlag.AlignVCenter), shown)
    return metrics.horizontalAdvance(shown)
