"""The palette where there is no room for it: a strip of the roles' badges, and a drawer over the page."""

from __future__ import annotations

from PySide6.QtCore import QObject, QSize, Qt, Signal
from PySide6.QtWidgets import QApplication, QFrame, QToolButton, QVBoxLayout, QWidget

from torchyard_core.topology.model import Role
from torchyard_gui.canvas.gestures.carried import ROLE_MIME
from torchyard_gui.theme.icons import icon, role_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.topology.labels import role_name, role_sentence
from torchyard_gui.topology.palette import Palette
from torchyard_gui.topology.palette_list import PaletteList
from torchyard_gui.topology.side_drawers import SideDrawer

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
        self.setFixedWidth(M.palette_strip)
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


class PaletteSide(SideDrawer):
    """Keeps the palette at the left of a page.

    Its drawer shuts when the keyboard leaves it, too, and when something is dragged out of it, so that what lies below
    can be reached.
    """

    def __init__(self, palette: Palette, page: QWidget) -> None:
        super().__init__(palette, page, "left")
        self._palette = palette
        palette.drag_begun.connect(self.shut)
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        application.focusObjectChanged.connect(self._focus_moved)

    def _make_strip(self) -> PaletteStrip:
        strip = PaletteStrip(self._page)
        strip.open_wanted.connect(self.open)
        strip.role_chosen.connect(lambda role, many: self._palette.choose_role(role, many, strip.roles))
        return strip

    def open(self) -> None:
        """Shows the palette where it is shut, and goes to its search."""
        self.reveal()
        self._palette.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._palette.search.selectAll()

    def _focus_moved(self, focus: QObject | None) -> None:
        if not self.is_open or not isinstance(focus, QWidget):
            return
        inside = focus is self._palette or self._palette.isAncestorOf(focus) or focus.window() is self._palette.popup
        if not inside and focus.window() is self._page.window():
            self.shut()
