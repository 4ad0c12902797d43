"""Actions of the window itself, which are available on every page, such as those for pages, panes and the theme."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, QObject, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QMainWindow, QWidget

from torchyard_agent import __version__
from torchyard_gui.theme.icons import icon, pixmap
from torchyard_gui.theme.theme import MODES, Mode, theme
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.page_actions import MENU
from torchyard_gui.widgets.text_labels import label


class WindowActions(QObject):
    """QActions with text, an optional shortcut, and the name of their menu as a property.

    Most requests are emitted as signals, which the window connects.
    """

    example_wanted = Signal()
    page_wanted = Signal(str)
    pane_wanted = Signal(bool)
    """Emitted with True to request the previous pane, and with False to request the next pane."""
    palette_wanted = Signal()
    menu_wanted = Signal()
    mode_changed = Signal(str)
    settings_wanted = Signal()

    def __init__(self, window: QMainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._actions: list[QAction] = []
        self.open_example = self._make("file", self.tr("Open the example"), "file", self.example_wanted.emit)
        self.open_example.setToolTip(self.tr("Open a small topology that trains on this computer"))
        # On some desktop environments, Qt has no standard shortcut for quitting.
        self.quit = self._make("file", self.tr("Quit"), "", window.close, "Ctrl+Q")
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self.settings = self._make("edit", self.tr("Settings …"), "gear", self.settings_wanted.emit, "Ctrl+,")
        self.settings.setMenuRole(QAction.MenuRole.PreferencesRole)
        self._pages_before = self._make("view", self.tr("Next pane"), "", lambda: self.pane_wanted.emit(False), "F6")
        self._make("view", self.tr("Previous pane"), "", lambda: self.pane_wanted.emit(True), "Shift+F6")
        self._themes()
        self.palette = self._make(
            "help", self.tr("All commands …"), "command", self.palette_wanted.emit, "Ctrl+Shift+P"
        )
        self._make("help", self.tr("Menu"), "menu", self.menu_wanted.emit, "F10")
        about = self._make("help", self.tr("About Torchyard"), "info", lambda: show_about(window))
        about.setMenuRole(QAction.MenuRole.AboutRole)

    def all(self) -> list[QAction]:
        """Returns the visible actions in the order of the menus."""
        return [action for action in self._actions if action.isVisible()]

    def add_page(self, key: str, title: str, icon_name: str, number: int) -> None:
        """Adds the action that shows a page. Its shortcut is Ctrl+`number`."""
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
        names = {"system": self.tr("System colours"), "light": self.tr("Light"), "dark": self.tr("Dark")}
        icons = {"system": "", "light": "sun", "dark": "moon"}
        self._modes = group = QActionGroup(self)
        for mode in MODES:
            action = self._make("view", names[mode], icons[mode], None)
            action.setCheckable(True)
            action.setData(mode)
            action.setChecked(mode == theme().mode)
            group.addAction(action)
        group.triggered.connect(self._set_mode)

    def choose_mode(self, mode: str) -> None:
        """Sets the theme by triggering its menu entry, which also emits `mode_changed`."""
        next(action for action in self._modes.actions() if action.data() == mode).trigger()

    def _set_mode(self, action: QAction) -> None:
        mode: Mode = action.data()
        theme().set_mode(mode)
        self.mode_changed.emit(mode)

    def _go(self) -> None:
        action = self.sender()
        if isinstance(action, QAction):
            self.page_wanted.emit(action.data())


def show_about(parent: QWidget) -> QDialog:
    """Opens the About dialog without blocking the window."""
    box = QDialog(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle(_tr("About Torchyard"))
    picture = QLabel(pixmap=pixmap("torchyard", 48, "accent", parent.devicePixelRatioF()))
    close = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    close.rejected.connect(box.close)
    title = label(_tr("Torchyard {version}").format(version=__version__), role="title")
    sentence = _tr("Draw a training cluster, press Launch, and it runs on your own GPU hosts over plain SSH.")
    words = label(sentence, ink="2", wrap=True)
    words.setMinimumWidth(360)
    license_ = label(_tr("Apache License 2.0"), role="small", ink="3")
    vbox(picture, title, words, license_, close, parent=box, margins=(24, 20, 24, 16), spacing=8)
    box.open()
    return box


def _tr(text: str) -> str:
    return QCoreApplication.translate("About", text)
