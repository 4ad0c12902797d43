"""The inspector where there is no room for it: a strip with a button, and a drawer over the page that stays open until
it is shut, as one goes from replica to replica."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QToolButton, QVBoxLayout, QWidget

from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.topology.inspector.inspector import Inspector
from torchyard_gui.topology.side_drawers import SideDrawer

BUTTON = QSize(44, 46)
PICTURE = 18


class InspectorStrip(QFrame):
    """Its button is down while the drawer is open."""

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
        self.button.setFixedSize(BUTTON)
        self.button.setCheckable(True)
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.setToolTip(self.tr("Show or hide the fields of what is selected (Ctrl+I)"))
        self.button.clicked.connect(self.pressed)
        self.setFocusProxy(self.button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(1, 10, 2, 12)
        layout.addWidget(self.button)
        layout.addStretch()
        theme().changed.connect(self._paint_icon)
        self._paint_icon()

    def _paint_icon(self) -> None:
        self.button.setIcon(icon("edit"))


class InspectorSide(SideDrawer):
    """Keeps the inspector at the right of a page."""

    def __init__(self, inspector: Inspector, page: QWidget) -> None:
        super().__init__(inspector, page, "right")
        self._inspector = inspector
        inspector.wanted.connect(self.reveal)

    def _make_strip(self) -> InspectorStrip:
        strip = InspectorStrip(self._page)
        strip.pressed.connect(self.toggle)
        return strip

    def toggle(self) -> None:
        """Goes to the first field; shuts a drawer that is open."""
        if self.is_open:
            self.shut()
            self._page.setFocus(Qt.FocusReason.OtherFocusReason)
        else:
            self._inspector.focus_first()
        self._turned()

    def _turned(self) -> None:
        if isinstance(strip := self.__dict__.get("strip"), InspectorStrip):
            strip.button.setChecked(self.is_open)
