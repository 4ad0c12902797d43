"""The side panels of a page. In a narrow window, a panel becomes a drawer that is opened by a strip of buttons."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QBoxLayout, QFrame, QToolButton, QWidget

from torchyard_core.topology.model import Role
from torchyard_gui.canvas.gestures.palette_drop import ROLE_MIME
from torchyard_gui.theme.icons import icon, role_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.topology.inspector.inspector import Inspector
from torchyard_gui.topology.labels import role_name, role_sentence
from torchyard_gui.topology.palette import Palette
from torchyard_gui.topology.palette_list import PaletteList
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.text_labels import set_style_property


class SideDrawer(QObject):
    """Controls a panel and its strip. Esc in the panel closes the drawer, if it is open, and focuses the page."""

    def __init__(self, panel: QWidget, page: QWidget, side: Literal["left", "right"]) -> None:
        super().__init__(page)
        self.is_narrow = False
        self._panel = panel
        self._page = page
        self._side = side
        self._is_shutting = False
        page.installEventFilter(self)
        panel.installEventFilter(self)

    @cached_property
    def strip(self) -> QWidget:
        """The strip that replaces the panel. It is created when the window first becomes narrow."""
        # The strip takes the panel's position in the tab order.
        first = next(stop for stop in _stops_after(self._panel) if self._panel.isAncestorOf(stop))
        *_, before = _stops_after(first)
        made = self._make_strip()
        made.hide()
        for stop in [stop for stop in _stops_after(made) if made.isAncestorOf(stop)]:
            QWidget.setTabOrder(before, stop)
            before = stop
        return made

    def _make_strip(self) -> QWidget:
        raise NotImplementedError

    @property
    def pane(self) -> QWidget:
        """The widget to which F6 moves the focus: the panel if it is visible, else the strip."""
        return self.strip if self.is_narrow and not self._panel.isVisible() else self._panel

    @property
    def is_open(self) -> bool:
        return self.is_narrow and self._panel.isVisible()

    def reveal(self) -> None:
        """Shows the panel without moving the focus."""
        if self.is_narrow and not self._panel.isVisible():
            self._panel.show()
            self._panel.raise_()
            self._lay_drawer()
            self._turned()

    def shut(self) -> None:
        """Closes the drawer. This has no effect while the panel is part of the layout."""
        if self.is_open and not self._is_shutting:
            self._is_shutting = True  # Without this flag, moving the focus would call this method again.
            focus = self._panel.window().focusWidget()
            if focus is not None and self._panel.isAncestorOf(focus):
                self._page.setFocus(Qt.FocusReason.OtherFocusReason)  # By default, Qt would focus the next widget.
            self._panel.hide()
            self._is_shutting = False
            self._turned()

    def escape(self) -> None:
        """Handles Esc in the panel: closes the drawer and returns the focus to the page."""
        self.shut()
        self._page.setFocus(Qt.FocusReason.OtherFocusReason)

    def fit(self) -> None:
        """Shows the strip in a narrow window, and the panel in a wide one."""
        narrow = self._page.window().width() < M.narrow_below
        if narrow != self.is_narrow:
            self.is_narrow = narrow
            layout = self._page.layout()
            assert isinstance(layout, QBoxLayout)
            here, gone = (self.strip, self._panel) if narrow else (self._panel, self.strip)
            layout.removeWidget(gone)
            layout.insertWidget(0 if self._side == "left" else layout.count(), here)
            set_style_property(self._panel, "drawer", narrow)
            self._panel.setVisible(not narrow)
            self.strip.setVisible(narrow)
            self._turned()
        if narrow:
            self._lay_drawer()

    def _turned(self) -> None:
        """Called after the drawer has opened or closed, and after the page has switched between the drawer and the
        panel in the layout.
        """

    def _lay_drawer(self) -> None:
        width = self._panel.width()
        x = M.palette_strip if self._side == "left" else self._page.width() - M.palette_strip - width
        self._panel.setGeometry(x, 0, width, self._page.height())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._page and event.type() in (QEvent.Type.Resize, QEvent.Type.Show):
            self.fit()
        elif watched is self._panel and _is_escape(event):
            self.escape()
            return True
        return super().eventFilter(watched, event)


def _stops_after(start: QWidget) -> Iterator[QWidget]:
    """Yields each widget that the Tab key reaches after `start`, in this order."""
    widget = start.nextInFocusChain()
    while widget is not None and widget is not start:
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget
        widget = widget.nextInFocusChain()


def _is_escape(event: QEvent) -> bool:
    return isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and event.key() == Qt.Key.Key_Escape


BUTTON = 32
PICTURE = 18


class PaletteStrip(QFrame):
    """Strip of role badges, which can be clicked and dragged, with a button that opens the palette."""

    role_chosen = Signal(str, bool)
    """Emitted with a role, and with whether several replicas are requested."""
    open_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "left")
        self.setAccessibleName(self.tr("Palette"))
        self.setFixedWidth(M.palette_strip)
        self.more = tool_button("search", self.tr("Show roles, presets and hosts (A)"), self.open_wanted)
        self.more.setIconSize(QSize(PICTURE, PICTURE))
        self.more.setFixedSize(BUTTON, BUTTON)
        self.roles = PaletteList(ROLE_MIME, self.tr("Roles"))
        self.roles.put(
            [(role.value, role_name(role), "") for role in Role],
            [f"{role_name(role)}: {role_sentence(role)}" for role in Role],
        )
        self.roles.chosen.connect(self.role_chosen)
        self.setFocusProxy(self.more)
        vbox(self.more, self.roles, None, parent=self, margins=(8, 12, 8, 12), spacing=8)
        theme().changed.connect(self._paint_icons)
        self._paint_icons()

    def _paint_icons(self) -> None:
        self.more.setIcon(icon("search"))
        for row in range(self.roles.count()):
            item = self.roles.item(row)
            item.setIcon(role_icon(str(item.data(Qt.ItemDataRole.UserRole))))


class PaletteSide(SideDrawer):
    """Drawer with the palette on the left of a page.

    The drawer also closes when it loses the focus, when a drag begins and when a preset is chosen, so that it does not
    cover the canvas.
    """

    def __init__(self, palette: Palette, page: QWidget) -> None:
        super().__init__(palette, page, "left")
        self._palette = palette
        palette.drag_begun.connect(self.shut)
        palette.preset_chosen.connect(self.shut)
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        application.focusObjectChanged.connect(self._focus_moved)

    def _make_strip(self) -> PaletteStrip:
        strip = PaletteStrip(self._page)
        strip.open_wanted.connect(self.open)
        strip.role_chosen.connect(lambda role, many: self._palette.choose_role(role, many, strip.roles))
        return strip

    def open(self) -> None:
        """Shows the palette with the focus in its search field."""
        self.reveal()
        self._palette.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._palette.search.selectAll()

    def escape(self) -> None:
        """Handles Esc in the palette: clears the search or, if there is none, closes the drawer."""
        if self._palette.search.text():
            self._palette.search.clear()
            self._palette.search.setFocus(Qt.FocusReason.OtherFocusReason)
        else:
            super().escape()

    def _focus_moved(self, focus: QObject | None) -> None:
        if not self.is_open or not isinstance(focus, QWidget):
            return
        inside = focus is self._palette or self._palette.isAncestorOf(focus) or focus.window() is self._palette.popup
        if not inside and focus.window() is self._page.window():
            self.shut()


DRAWER_BUTTON = QSize(44, 46)


class InspectorStrip(QFrame):
    """Strip with a button that opens the inspector. The button is checked while the inspector is open."""

    pressed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "right")
        self.setAccessibleName(self.tr("Inspector"))
        self.setFixedWidth(M.palette_strip)
        self.button = QToolButton()
        self.button.setProperty("rail", True)
        self.button.setText(self.tr("Fields"))
        self.button.setIconSize(QSize(PICTURE, PICTURE))
        self.button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
        self.button.setFixedSize(DRAWER_BUTTON)
        self.button.setCheckable(True)
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.setToolTip(self.tr("Show or hide the fields of the selection (Ctrl+I)"))
        self.button.clicked.connect(self.pressed)
        self.setFocusProxy(self.button)
        vbox(self.button, None, parent=self, margins=(1, 10, 2, 12))
        theme().changed.connect(self._paint_icon)
        self._paint_icon()

    def _paint_icon(self) -> None:
        self.button.setIcon(icon("edit"))


class InspectorSide(SideDrawer):
    """Drawer with the inspector on the right of a page."""

    def __init__(self, inspector: Inspector, page: QWidget) -> None:
        super().__init__(inspector, page, "right")
        self._inspector = inspector
        inspector.wanted.connect(self.reveal)

    def _make_strip(self) -> InspectorStrip:
        strip = InspectorStrip(self._page)
        strip.pressed.connect(self.toggle)
        return strip

    def toggle(self) -> None:
        """Opens the drawer with the focus in its first field, or closes an open drawer."""
        if self.is_open:
            self.shut()
            self._page.setFocus(Qt.FocusReason.OtherFocusReason)
        else:
            self._inspector.focus_first()
        self._turned()

    def _turned(self) -> None:
        if isinstance(strip := self.__dict__.get("strip"), InspectorStrip):
            strip.button.setChecked(self.is_open)
