"""The command palette: a searchable list of the enabled actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from PySide6.QtCore import QEvent, QModelIndex, QObject, QPersistentModelIndex, QSize, Qt
from PySide6.QtGui import QAction, QIcon, QKeyEvent, QKeySequence, QPainter, QPixmap
from PySide6.QtWidgets import QFrame, QListWidget, QListWidgetItem, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.input_fields import SearchField
from torchyard_gui.widgets.layouts import vbox

WIDTH = 520
ROWS = 12


class CommandPalette(QFrame):
    """Panel over its window that lists the enabled actions. The list is filled each time the panel opens."""

    def __init__(
        self,
        actions: Callable[[], Iterable[QAction]],
        parent: QWidget,
        *,
        run: Callable[[QAction], None] = QAction.trigger,
        first: Callable[[], Iterable[QAction]] = tuple,
    ) -> None:
        """Creates the palette without showing it.

        Args:
            actions: Returns the actions to list, of which only the enabled ones are shown.
            run: Called with the action that the user chooses.
            first: Returns the actions that are listed first, such as those of the current page.
        """
        super().__init__(parent)
        self._ask = actions
        self._do = run
        self._ask_first = first
        self._around = parent
        self._actions: list[QAction] = []
        self._came_from: QWidget | None = None
        self._no_icon = _blank_icon()
        self.setProperty("popup", True)
        self.setAccessibleName(self.tr("Commands"))
        self.field = SearchField(self.tr("Search commands"), self)
        self.list = QListWidget(self)
        self.list.setItemDelegate(ShortcutDelegate(self.list))
        self.list.setUniformItemSizes(True)
        self.list.setIconSize(QSize(16, 16))
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setAccessibleName(self.tr("Matching commands"))
        vbox(self.field, self.list, parent=self, margins=(8, 8, 8, 8), spacing=6)
        self.field.textChanged.connect(self._search)
        self.field.installEventFilter(self)
        parent.installEventFilter(self)
        self.list.itemClicked.connect(self._run)
        self.hide()

    def open(self) -> None:
        """Opens the palette with an empty search field, which gets the focus."""
        self._came_from = self.window().focusWidget()
        first = set(self._ask_first())
        self._actions = sorted(filter(_can_be_run, self._ask()), key=lambda each: (each not in first, _name(each)))
        self.field.clear()
        self._search("")
        self._place()
        self.show()
        self.raise_()
        self.field.setFocus()

    def _place(self) -> None:
        around = self._around.rect()
        width = min(WIDTH, around.width() - 32)
        self.setGeometry((around.width() - width) // 2, 64, width, 56 + ROWS * 28)

    def close_palette(self) -> None:
        """Closes the palette and restores the focus."""
        self.hide()
        if self._came_from is not None:
            self._came_from.setFocus()
        self._came_from = None
        self._actions = []
        self.list.clear()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._around:
            if event.type() == QEvent.Type.Resize and self.isVisible():
                self._place()
            return False
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            return self._key(Qt.Key(event.key()))
        if event.type() == QEvent.Type.FocusOut and self.isVisible() and not self.list.underMouse():
            self.hide()
        return False

    def _key(self, key: Qt.Key) -> bool:
        if key == Qt.Key.Key_Escape:
            self.close_palette()
        elif key in (Qt.Key.Key_Down, Qt.Key.Key_Up):
            count = self.list.count()
            if count:
                self.list.setCurrentRow((self.list.currentRow() + (1 if key == Qt.Key.Key_Down else -1)) % count)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if (item := self.list.currentItem()) is not None:
                self._run(item)
        else:
            return False
        return True

    def _search(self, text: str) -> None:
        words = text.casefold().split()
        self.list.clear()
        for action in self._actions:
            searched = f"{_name(action)} {action.toolTip()}".casefold()
            if all(word in searched for word in words):
                item = QListWidgetItem(self._no_icon if action.icon().isNull() else action.icon(), _name(action))
                item.setData(Qt.ItemDataRole.UserRole, self._actions.index(action))
                item.setData(SHORTCUT_ROLE, action.shortcut().toString(QKeySequence.SequenceFormat.NativeText))
                self.list.addItem(item)
        self.list.setCurrentRow(0)

    def _run(self, item: QListWidgetItem) -> None:
        action = self._actions[item.data(Qt.ItemDataRole.UserRole)]
        self.close_palette()
        self._do(action)


def _can_be_run(action: QAction) -> bool:
    return action.isEnabled() and bool(action.text()) and action.menu() is None


def _name(action: QAction) -> str:
    return action.text().replace("&", "")


def _blank_icon() -> QIcon:
    """Returns an empty icon for actions that have no icon, so that the texts of all rows are aligned."""
    nothing = QPixmap(16, 16)
    nothing.fill(Qt.GlobalColor.transparent)
    return QIcon(nothing)


SHORTCUT_ROLE = int(Qt.ItemDataRole.UserRole) + 1


class ShortcutDelegate(QStyledItemDelegate):
    """Paints a row with its shortcut (`SHORTCUT_ROLE`) at the right."""

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
