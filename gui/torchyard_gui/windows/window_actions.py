"""What the window itself can do, whatever page is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence

from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import MODES, Mode, theme
from torchyard_gui.windows.about_dialog import show_about
from torchyard_gui.windows.page_protocol import MENU

if TYPE_CHECKING:
    from torchyard_gui.windows.main_window import MainWindow


class WindowActions(QObject):
    """Each has a text, a shortcut where it is wanted often, and says which menu it is in."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._actions: list[QAction] = []
        self.open_example = self._make("file", self.tr("Open the example"), "file", window.example_wanted.emit)
        self.open_example.setToolTip(self.tr("Open a small training that runs on this computer"))
        # Spelt out: Qt's own key to quit is there on a few desktops only.
        self.quit = self._make("file", self.tr("Quit"), "", window.close, "Ctrl+Q")
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self._pages_before = self._make("view", self.tr("Next pane"), "", window.cycle_panes, "F6")
        self._make("view", self.tr("Previous pane"), "", self._previous_pane, "Shift+F6")
        self._themes()
        self.palette = self._make("help", self.tr("All commands …"), "command", self._open_palette, "Ctrl+Shift+P")
        self._make("help", self.tr("Menu"), "menu", window.open_menu, "F10")
        about = self._make("help", self.tr("About Torchyard"), "info", self._about)
        about.setMenuRole(QAction.MenuRole.AboutRole)

    def all(self) -> list[QAction]:
        """Every one, in the order of their menus."""
        return [action for action in self._actions if action.isVisible()]

    def add_page(self, key: str, title: str, icon_name: str, number: int) -> None:
        """One more page to go to."""
        action = self._make(
            "view", self.tr("Go to {page}").format(page=title), icon_name, None, f"Ctrl+{number}", before=True
        )
        action.setData(key)
        action.triggered.connect(self._go)

    def _make(
        self,
        menu: str,
        text: str,
        icon_name: str,
        do: Callable[[], object] | None,
        shortcut: str = "",
        *,
        before: bool = False,
    ) -> QAction:
        action = QAction(text, self._window)
        action.setProperty(MENU, menu)
        if icon_name:
            action.setIcon(icon(icon_name))
        if shortcut:
            action.setShortcut(QKeySequence(shortcut))
            action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        if do is not None:
            action.triggered.connect(lambda: do())
        at = self._actions.index(self._pages_before) if before else len(self._actions)
        self._actions.insert(at, action)
        self._window.addAction(action)
        return action

    def _themes(self) -> None:
        names = {"system": self.tr("Colours of the system"), "light": self.tr("Light"), "dark": self.tr("Dark")}
        icons = {"system": "", "light": "sun", "dark": "moon"}
        group = QActionGroup(self)
        for mode in MODES:
            action = self._make("view", names[mode], icons[mode], None)
            action.setCheckable(True)
            action.setData(mode)
            action.setChecked(mode == theme().mode)
            group.addAction(action)
        group.triggered.connect(self._set_mode)

    def _set_mode(self, action: QAction) -> None:
        mode: Mode = action.data()
        theme().set_mode(mode)
        self._window.settings.mode = mode

    def _go(self) -> None:
        action = self.sender()
        if isinstance(action, QAction):
            self._window.show_page(action.data())

    def _previous_pane(self) -> None:
        self._window.cycle_panes(backwards=True)

    def _open_palette(self) -> None:
        self._window.palette_.open()

    def _about(self) -> None:
        show_about(self._window)
