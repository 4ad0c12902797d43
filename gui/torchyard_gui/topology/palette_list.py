"""Rows of the palette that can be dragged onto the canvas, clicked, and chosen with Enter."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QMimeData, QPoint, Qt, Signal
from PySide6.QtGui import QDrag, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QApplication, QListWidget, QListWidgetItem

from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.palette_row import COUNT, PaletteRow

KEY = int(Qt.ItemDataRole.UserRole)
NONE = "–"
"""The count of what there is none of."""


class PaletteList(QListWidget):
    """One section: rows that can be dragged, clicked, and chosen with Enter. It is as high as its rows."""

    chosen = Signal(str, bool)
    """A row's key, and whether many were asked for (Shift)."""
    drag_begun = Signal()

    def __init__(self, mime: str, name: str) -> None:
        super().__init__()
        self._mime = mime
        self._pressed: QPoint | None = None
        self.setAccessibleName(name)
        self.setItemDelegate(PaletteRow(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMouseTracking(True)
        self.setProperty("bare", True)

    def put(self, rows: Sequence[tuple[str, str, str]], tips: Sequence[str]) -> None:
        """Rows as (key, text, count). Rows that stay keep being current."""
        current = self.current_key()
        self.clear()
        for (key, text, count), tip in zip(rows, tips, strict=True):
            item = QListWidgetItem(text, self)
            item.setData(KEY, key)
            item.setData(COUNT, count)
            item.setToolTip(tip)
            said = self.tr("{name}, none") if count == NONE else "{name}, {count}" if count else "{name}"
            item.setData(Qt.ItemDataRole.AccessibleTextRole, said.format(name=text, count=count))
            if key == current:
                self.setCurrentItem(item)
        self._fit()

    def keep(self, letters: str) -> str:
        """Shows only rows with these letters; gives the first one's key."""
        first = ""
        for row in range(self.count()):
            item = self.item(row)
            fits = letters.lower() in item.text().lower() or letters.lower() in str(item.data(KEY)).lower()
            item.setHidden(not fits)
            first = first or (str(item.data(KEY)) if fits else "")
        self._fit()
        return first

    def current_key(self) -> str:
        item = self.currentItem()
        return str(item.data(KEY)) if item is not None else ""

    def row_of(self, key: str) -> QListWidgetItem | None:
        """The row of a key."""
        return next((self.item(row) for row in range(self.count()) if self.item(row).data(KEY) == key), None)

    def _fit(self) -> None:
        shown = sum(not self.item(row).isHidden() for row in range(self.count()))
        self.setFixedHeight(shown * theme().metrics.row)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        at = event.position().toPoint()
        self._pressed = at if event.button() is Qt.MouseButton.LeftButton and self.itemAt(at) is not None else None

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at = event.position().toPoint()
        if self._pressed is None or not event.buttons() & Qt.MouseButton.LeftButton:
            super().mouseMoveEvent(event)
        elif (at - self._pressed).manhattanLength() >= QApplication.startDragDistance():
            item = self.itemAt(self._pressed)
            self._pressed = None
            if item is not None:
                self._drag(item)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        at = event.position().toPoint()
        item = self.itemAt(at)
        if self._pressed is not None and item is not None and item is self.itemAt(self._pressed):
            self._choose(item, event.modifiers())
        self._pressed = None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space) and self.currentItem() is not None:
            self._choose(self.currentItem(), event.modifiers())
            return
        super().keyPressEvent(event)

    def _choose(self, item: QListWidgetItem, modifiers: Qt.KeyboardModifier) -> None:
        self.chosen.emit(str(item.data(KEY)), bool(modifiers & Qt.KeyboardModifier.ShiftModifier))

    def mime_of(self, key: str) -> QMimeData:
        """What a drag of a row carries."""
        mime = QMimeData()
        mime.setData(self._mime, key.encode())
        return mime

    def _drag(self, item: QListWidgetItem) -> None:
        drag = QDrag(self)
        drag.setMimeData(self.mime_of(str(item.data(KEY))))
        icon = item.icon()
        if not icon.isNull():
            drag.setPixmap(icon.pixmap(20, 20))
            drag.setHotSpot(QPoint(10, 10))
        self.drag_begun.emit()
        drag.exec(Qt.DropAction.CopyAction)
