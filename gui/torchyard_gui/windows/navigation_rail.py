"""The navigation rail, with a button for each page and, at the end, the buttons for the settings and the menu."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QSize, Qt, Signal
from PySide6.QtWidgets import QButtonGroup, QFrame, QToolButton, QWidget

from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.layouts import vbox


class NavigationRail(QFrame):
    """Rail that emits `chosen` with the index of the page that the user has chosen. The window then shows the page."""

    chosen = Signal(int)
    menu_wanted = Signal(QPoint)
    settings_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "left")
        self.setAccessibleName(self.tr("Pages"))
        self.setFixedWidth(theme().metrics.rail)
        self._group = QButtonGroup(self)
        self._group.idClicked.connect(self.chosen)
        self._layout = vbox(None, parent=self, margins=(5, 8, 6, 8), spacing=6)
        self.settings_button = self._button(self.tr("Settings"), "gear", 50)
        self.settings_button.setToolTip(self.tr("Settings (Ctrl+,)"))
        self.settings_button.clicked.connect(self.settings_wanted)
        self._layout.addWidget(self.settings_button)
        self.menu_button = self._button(self.tr("Menu"), "menu", 44)
        self.menu_button.setToolTip(self.tr("All commands (F10)"))
        self.menu_button.clicked.connect(self._ask_for_menu)
        self._layout.addWidget(self.menu_button)

    def add_page(self, title: str, icon_name: str) -> None:
        """Adds the button of a page after the existing buttons."""
        number = len(self._group.buttons())
        button = self._button(title, icon_name, 54)
        button.setCheckable(True)
        button.setToolTip(self.tr("{page} (Ctrl+{number})").format(page=title, number=number + 1))
        self._group.addButton(button, number)
        self._layout.insertWidget(number, button)

    def set_current(self, number: int) -> None:
        self._group.button(number).setChecked(True)

    def button(self, number: int) -> QToolButton:
        button = self._group.button(number)
        assert isinstance(button, QToolButton)
        return button

    def focus_current(self) -> None:
        if (button := self._group.checkedButton()) is not None:
            button.setFocus(Qt.FocusReason.TabFocusReason)

    def _button(self, text: str, icon_name: str, height: int) -> QToolButton:
        button = QToolButton(self)
        button.setProperty("rail", True)
        button.setText(text)
        button.setIcon(icon(icon_name))
        button.setIconSize(QSize(20, 20))
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
        button.setFixedSize(theme().metrics.rail - 11, height)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def _ask_for_menu(self) -> None:
        self.menu_wanted.emit(self.menu_button.mapToGlobal(QPoint(self.menu_button.width() + 6, 0)))
