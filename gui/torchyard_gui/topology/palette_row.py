"""Draws a row of the palette: badge, name, and at the right how many or how much is free."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QIcon, QPainter
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem

from torchyard_gui.theme.theme import theme

COUNT = int(Qt.ItemDataRole.UserRole) + 1
"""The text at the right."""
ICON = 18
BADGE_ONLY = 48
"""A row this narrow shows its badge and no more: its tool tip says what it is."""


class PaletteRow(QStyledItemDelegate):
    """Hovered rows are tinted; the current one has a ring while its list has the focus."""

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(80, theme().metrics.row)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        radius = theme().metrics.radius_small
        if state & QStyle.StateFlag.State_MouseOver:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().brush("hover"))
            painter.drawRoundedRect(rect, radius, radius)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(theme().pen("accent", theme().metrics.focus_ring))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), radius, radius)
        icon = index.data(Qt.ItemDataRole.DecorationRole)
        top = rect.top() + (rect.height() - ICON) // 2
        if isinstance(icon, QIcon):
            left = rect.left() + (2 if rect.width() > BADGE_ONLY else (rect.width() - ICON) // 2)
            icon.paint(painter, QRect(left, top, ICON, ICON))
        if rect.width() <= BADGE_ONLY:
            painter.restore()
            return
        count = str(index.data(COUNT) or "")
        painter.setFont(theme().font("small"))
        width = painter.fontMetrics().horizontalAdvance(count)
        middle = int(Qt.AlignmentFlag.AlignVCenter)
        painter.setPen(theme().pen("text2"))
        painter.drawText(rect.adjusted(0, 0, -2, 0), middle | int(Qt.AlignmentFlag.AlignRight), count)
        painter.setFont(theme().font("body"))
        painter.setPen(theme().pen("text"))
        room = rect.adjusted(ICON + 8, 0, -width - 8 if count else 0, 0)
        # Names of hosts and machine types differ at their ends.
        name = painter.fontMetrics().elidedText(
            str(index.data(Qt.ItemDataRole.DisplayRole)), Qt.TextElideMode.ElideMiddle, room.width()
        )
        painter.drawText(room, middle, name)
        painter.restore()
