"""The lists of the palette. Their rows can be dragged, clicked, or chosen with Enter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from PySide6.QtCore import QEvent, QMimeData, QModelIndex, QPersistentModelIndex, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QDrag, QFocusEvent, QIcon, QKeyEvent, QMouseEvent, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QSizePolicy,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.text_labels import SectionLabel

KEY = int(Qt.ItemDataRole.UserRole)
NONE = "–"
"""The text for a count of zero."""


class PaletteList(QListWidget):
    """List with the rows of a section. The height of the list depends on the number of visible rows."""

    chosen = Signal(str, bool)
    """Emitted with the key of a row, and with whether several replicas are requested (Shift)."""
    drag_begun = Signal()

    def __init__(self, mime: str, name: str) -> None:
        super().__init__()
        self._mime = mime
        self._pressed: QPoint | None = None
        self.is_by_keyboard = False
        """Whether the list got the focus other than by mouse, or a key has been pressed since. If so, a ring shows the
        focus.
        """
        self.setAccessibleName(name)
        self.setItemDelegate(PaletteRow(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMouseTracking(True)
        self.setProperty("bare", True)

    def put(self, rows: Sequence[tuple[str, str, str]], tips: Sequence[str]) -> None:
        """Sets the rows as (key, text, count). The current row is kept if it still exists."""
        current = self.current_key()
        # If the keys are unchanged, the rows are not recreated, to keep the focus and the highlight under the pointer.
        if [self.item(row).data(KEY) for row in range(self.count())] != [key for key, *_ in rows]:
            self.clear()
            self.addItems([text for _, text, _ in rows])
        for row, ((key, text, count), tip) in enumerate(zip(rows, tips, strict=True)):
            item = self.item(row)
            item.setText(text)
            item.setData(KEY, key)
            item.setData(COUNT, count)
            item.setToolTip(tip)
            tip = self.tr("{name}, none") if count == NONE else "{name}, {count}" if count else "{name}"
            item.setData(Qt.ItemDataRole.AccessibleTextRole, tip.format(name=text, count=count))
            if key == current:
                self.setCurrentItem(item)
        self._fit()

    def keep(self, letters: str) -> str:
        """Hides the rows that do not contain `letters`. Returns the key of the first match, or "" if there is none."""
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
        return next((self.item(row) for row in range(self.count()) if self.item(row).data(KEY) == key), None)

    def _fit(self) -> None:
        shown = sum(not self.item(row).isHidden() for row in range(self.count()))
        self.setFixedHeight(shown * theme().metrics.row)

    def viewportEvent(self, event: QEvent) -> bool:
        # After a drag, Qt still reports the pointer at the position where the drag began, although the pointer has left
        # the list.
        if event.type() in (QEvent.Type.HoverEnter, QEvent.Type.HoverMove) and not self.viewport().underMouse():
            return True
        return super().viewportEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.is_by_keyboard = event.reason() is not Qt.FocusReason.MouseFocusReason
        super().focusInEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.is_by_keyboard = False
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
        if not self.is_by_keyboard:
            self.is_by_keyboard = True
            self.viewport().update()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space) and self.currentItem() is not None:
            self._choose(self.currentItem(), event.modifiers())
            return
        super().keyPressEvent(event)

    def _choose(self, item: QListWidgetItem, modifiers: Qt.KeyboardModifier) -> None:
        self.chosen.emit(str(item.data(KEY)), bool(modifiers & Qt.KeyboardModifier.ShiftModifier))

    def mime_of(self, key: str) -> QMimeData:
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
        # Qt sends no leave event during a drag, so without this event, the row would stay highlighted.
        QApplication.sendEvent(self.viewport(), QEvent(QEvent.Type.Leave))
        self.viewport().update()


COUNT = int(Qt.ItemDataRole.UserRole) + 1
"""The item data role of the text at the right of a row."""
ICON = 18
BADGE_ONLY = 48
"""A row of at most this width in pixels shows only its icon. The tool tip then contains the name of the row."""


class PaletteRow(QStyledItemDelegate):
    """Paints the rows: with a tint under the pointer, and with a ring for the row that has the keyboard focus."""

    def __init__(self, rows: PaletteList) -> None:
        super().__init__(rows)
        self._rows = rows

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
        if state & QStyle.StateFlag.State_HasFocus and self._rows.is_by_keyboard:
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
        side = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight
        painter.setPen(theme().pen("text2"))
        painter.drawText(rect.adjusted(0, 0, -2, 0), int(side), count)
        room = rect.adjusted(ICON + 8, 0, -width - 8 if count else 0, 0)
        name = str(index.data(Qt.ItemDataRole.DisplayRole))
        painter.setFont(theme().font("body"))
        if painter.fontMetrics().horizontalAdvance(name) > room.width():
            name = name.partition(".")[0]  # The first label of a domain name identifies the host.
        # Names of hosts and machine types often differ only at the end, so they are elided in the middle.
        draw_elided(painter, room, name, ink="text", mode=Qt.TextElideMode.ElideMiddle)
        painter.restore()


PICTURE = 14


class PaletteSection(QWidget):
    """A section of the palette. It is hidden while no row matches the search.

    A foldable section is initially folded. A search shows matches even in a folded section.
    """

    def __init__(self, name: str, make: Callable[[str], PaletteList], tip: str = "", *, folds: bool = False) -> None:
        """Creates a section. `make` creates the list; for a foldable section, it is called when the rows are first
        needed.
        """
        super().__init__()
        self._make = make
        self._name = name
        self._is_folded = folds
        self._letters = ""
        self.head: SectionLabel | QPushButton = QPushButton(name.upper()) if folds else SectionLabel(name)
        if isinstance(self.head, QPushButton):
            self.head.setProperty("fold", True)
            self.head.setAccessibleName(name)
            self.head.setCheckable(True)
            self.head.setIconSize(QSize(PICTURE, PICTURE))
            self.head.clicked.connect(lambda: self.fold(not self._is_folded))
            theme().changed.connect(self._draw)
        self.head.setToolTip(tip)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._layout = vbox(self.head, parent=self, margins=(0, 0, 0, 4), spacing=4)
        self._draw()

    @cached_property
    def rows(self) -> PaletteList:
        made = self._make(self._name)
        self._layout.addWidget(made)
        if isinstance(self.head, QPushButton):
            self.setTabOrder(self.head, made)
        return made

    @property
    def has_rows(self) -> bool:
        """Whether the section's list has been created."""
        return "rows" in self.__dict__

    def fold(self, folded: bool) -> None:
        """Folds or unfolds the section."""
        self._is_folded = folded
        self._draw()

    def keep(self, letters: str) -> str:
        """Hides the rows that do not contain `letters`. Returns the key of the first match, or "" if there is none."""
        self._letters = letters
        if not letters and self._is_folded and not self.has_rows:
            return ""
        found = self.rows.keep(letters)
        self.setVisible(bool(found))
        self._draw()
        return found

    def _draw(self) -> None:
        shown = not self._is_folded or bool(self._letters)
        if shown or self.has_rows:
            self.rows.setVisible(shown)
        if isinstance(self.head, QPushButton):
            self.head.setIcon(icon("chevron-down" if shown else "chevron-right"))
            self.head.setChecked(shown)
