"""The palette where there is no room for it: a strip of the roles' badges, and a drawer over the page."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QToolButton, QVBoxLayout, QWidget

from torchyard_core.topology.model import Role
from torchyard_gui.theme.icons import icon, role_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.palette import ROLE_MIME, Palette, PaletteList
from torchyard_gui.topology.words import role_name, role_sentence

WIDTH = 48
NARROW_BELOW = 1360
"""Width of the window, from which on the palette has room of its own."""
BUTTON = 32
PICTURE = 18


class PaletteStrip(QFrame):
    """Badges that can be clicked and dragged as the palette's rows can, and a button for the drawer."""

    role_chosen = Signal(str, bool)
    """A role, and whether many were asked for."""
    open_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "left")
        self.setAccessibleName(self.tr("Palette"))
        self.setFixedWidth(WIDTH)
        self.more = QToolButton()
        self.more.setIcon(icon("search"))
        self.more.setIconSize(QSize(PICTURE, PICTURE))
        self.more.setFixedSize(BUTTON, BUTTON)
        self.more.setToolTip(self.tr("Show roles, presets and hosts (A)"))
        self.more.setAccessibleName(self.tr("Show roles, presets and hosts"))
        self.more.clicked.connect(self.open_wanted)
        self.roles = PaletteList(ROLE_MIME, self.tr("Roles"))
        self.roles.put(
            [(role.value, role_name(role), "") for role in Role],
            [f"{role_name(role)}: {role_sentence(role)}" for role in Role],
        )
        self.roles.chosen.connect(self.role_chosen)
        self.setFocusProxy(self.more)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 12, 8, 12)
        layout.setSpacing(8)
        layout.addWidget(self.more)
        layout.addWidget(self.roles)
        layout.addStretch()
        theme().changed.connect(self._paint_icons)
        self._paint_icons()

    def _paint_icons(self) -> None:
        self.more.setIcon(icon("search"))
        for row in range(self.roles.count()):
            item = self.roles.item(row)
            item.setIcon(role_icon(str(item.data(Qt.ItemDataRole.UserRole))))


class PaletteSide(QObject):
    """Keeps the palette at the left of a page: in its layout, or below NARROW_BELOW as a drawer beside the strip.

    An open drawer lies over the page. It shuts when the keyboard leaves it, by Escape, and when something is dragged
    out of it, so that what lies below can be reached.
    """

    def __init__(self, palette: Palette, page: QWidget) -> None:
        super().__init__(page)
        self.strip = PaletteStrip(page)
        self.strip.hide()
        self.is_narrow = False
        self._palette = palette
        self._page = page
        self.strip.open_wanted.connect(self.open)
        self.strip.role_chosen.connect(lambda role, many: palette.choose_role(role, many, self.strip.roles))
        for rows in (palette.roles, palette.presets, palette.tiers, palette.hosts, palette.machines):
            rows.drag_begun.connect(self.shut)
        page.installEventFilter(self)
        palette.installEventFilter(self)
        QApplication.instance().focusObjectChanged.connect(self._focus_moved)  # type: ignore[union-attr]

    def widgets(self) -> tuple[QWidget, QWidget]:
        """For the page's layout, from the left."""
        return self.strip, self._palette

    @property
    def pane(self) -> QWidget:
        """What F6 goes to."""
        return self.strip if self.is_narrow and not self._palette.isVisible() else self._palette

    def open(self) -> None:
        """Shows the palette where it is shut, and goes to its search."""
        if self.is_narrow:
            self._palette.show()
            self._palette.raise_()
            self._lay_drawer()
        self._palette.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._palette.search.selectAll()

    def reveal(self) -> None:
        """Shows the palette where it is shut; the keyboard goes where the caller puts it."""
        if self.is_narrow:
            self.open()

    def shut(self) -> None:
        """Only the strip is left; with room for the palette, nothing happens."""
        if self.is_narrow and self._palette.isVisible():
            self._palette.hide()

    def fit(self) -> None:
        """Strip or palette, as the window is wide."""
        narrow = self._page.window().width() < NARROW_BELOW
        if narrow != self.is_narrow:
            self.is_narrow = narrow
            layout = self._page.layout()
            assert layout is not None
            if narrow:
                layout.removeWidget(self._palette)
            else:
                layout.insertWidget(1, self._palette)  # type: ignore[attr-defined]
            self._palette.setProperty("drawer", narrow)
            self._palette.setVisible(not narrow)
            self.strip.setVisible(narrow)
        if narrow:
            self._lay_drawer()

    def _lay_drawer(self) -> None:
        self._palette.setGeometry(WIDTH, 0, theme().metrics.palette, self._page.height())

    def _focus_moved(self, focus: QObject | None) -> None:
        if not self.is_narrow or not self._palette.isVisible() or not isinstance(focus, QWidget):
            return
        inside = focus is self._palette or self._palette.isAncestorOf(focus) or focus.window() is self._palette.popup
        if not inside and focus.window() is self._page.window():
            self.shut()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._page and event.type() in (QEvent.Type.Resize, QEvent.Type.Show):
            self.fit()
        elif watched is self._palette and self.is_narrow and _is_escape(event):
            self.shut()
            self._page.setFocus(Qt.FocusReason.OtherFocusReason)
            return True
        return super().eventFilter(watched, event)


def _is_escape(event: QEvent) -> bool:
    return isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and event.key() == Qt.Key.Key_Escape
