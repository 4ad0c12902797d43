"""Draws a row of a list with the shortcut of its action at the right."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem

from torchyard_gui.theme.theme import theme

SHORTCUT_ROLE = int(Qt.ItemDataRole.UserRole) + 1


class ShortcutDelegate(QStyledItemDelegate):
    """The row's `SHORTCUT_ROLE` is what it draws."""

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        super().paint(painter, option, index)
        shortcut = index.data(SHORTCUT_ROLE)
        if shortcut:
            painter.save()
            painter.setFont(theme().font("small"))
            painter.setPen(theme().pen("text3"))
            painter.drawText(
                option.rect.adjusted(0, 0, -8, 0),
                int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter),
                shortcut,
            )
            painter.restore()
