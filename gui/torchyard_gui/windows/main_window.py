"""The main window: navigation rail, current page and status bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from PySide6.QtCore import QEvent, QPoint, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QGuiApplication, QKeyEvent, QPaintEvent
from PySide6.QtWidgets import QApplication, QMainWindow, QStackedWidget, QWidget

from torchyard_gui.theme.icons import icon, refresh_icons
from torchyard_gui.theme.theme import Mode, theme
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.toast import Toast
from torchyard_gui.windows.navigation_rail import NavigationRail
from torchyard_gui.windows.status_bar import StatusBar, StatusText
from torchyard_gui.windows.window_actions import WindowActions
from torchyard_gui.windows.window_menu import WindowMenu
from torchyard_gui.windows.window_settings import WindowSettings

if TYPE_CHECKING:
    from torchyard_gui.widgets.command_palette import CommandPalette


SMALLEST = QSize(960, 600)
FIRST_SIZE = QSize(1440, 900)
FRAME = QSize(8, 40)
"""The largest frame, in pixels, that window managers usually add around a window."""
DROPPED = (".yaml", ".yml", ".json", ".conf")
"""Suffixes of the files that can be dropped on the window."""


@dataclass
class _Place:
    """An entry in the navigation rail, with its page. The page is created on first use."""

    title: str
    make: Callable[[], QWidget]
    frame: PageFrame


class MainWindow(QMainWindow):
    """Main window that shows pages, which are identified by keys.

    The window itself does not know the pages; the module `signal_connections` creates and connects them.
    """

    painted = Signal()
    """Emitted once after the first paint, to start slow work."""
    page_made = Signal(str)
    page_shown = Signal(str)
    file_dropped = Signal(Path)
    example_wanted = Signal()
    settings_wanted = Signal()
    closed = Signal()
    step_wanted = Signal(object)
    """Emitted with the NextStep whose button the user pressed."""

    def __init__(self, settings: WindowSettings) -> None:
        super().__init__()
        self.settings = settings
        self.actions_ = WindowActions(self)
        self._places: dict[str, _Place] = {}
        self._current = ""
        self._was_painted = False
        self.before_closing: list[Callable[[], bool]] = []
        """Callbacks that are called before the pages are asked whether the window may close. A callback that returns
        False prevents closing, and may close the window later itself.
        """
        self._fleet_texts: list[StatusText] = []
        self._right_text = ""

        self.rail = NavigationRail()
        self.stack = QStackedWidget()
        self.status_line = StatusBar()
        self.menu = WindowMenu(lambda: self.page_actions(self._current), self.actions_.all, self)
        self._lay_out()
        self.toast = Toast(self)

        self.actions_.example_wanted.connect(self.example_wanted)
        self.actions_.settings_wanted.connect(self.settings_wanted)
        self.actions_.page_wanted.connect(self.show_page)
        self.actions_.pane_wanted.connect(self.cycle_panes)
        self.actions_.palette_wanted.connect(lambda: self.palette_.open())
        self.actions_.menu_wanted.connect(self.open_menu)
        self.actions_.mode_changed.connect(self._keep_mode)
        self.rail.chosen.connect(lambda number: self.show_page(self.keys[number]))
        self.rail.settings_wanted.connect(self.settings_wanted)
        self.rail.menu_wanted.connect(self.menu.popup_at)
        theme().changed.connect(refresh_icons)
        self.setAcceptDrops(True)
        self.setMinimumSize(SMALLEST)
        self.resize(self._first_size())
        self.setWindowTitle("Torchyard")
        self.setWindowIcon(icon("torchyard", "accent"))

    @cached_property
    def palette_(self) -> CommandPalette:
        """The command palette. It is created on first use."""
        from torchyard_gui.widgets.command_palette import CommandPalette

        return CommandPalette(
            self.all_actions, self._middle, run=self.run_action, first=lambda: self.page_actions(self._current)
        )

    def _first_size(self) -> QSize:
        """Returns FIRST_SIZE, reduced if necessary to fit the screen together with FRAME, but at least SMALLEST."""
        return FIRST_SIZE.boundedTo(QGuiApplication.primaryScreen().availableSize() - FRAME).expandedTo(SMALLEST)

    def add_page(self, key: str, title: str, icon_name: str, make: Callable[[], QWidget]) -> None:
        """Adds a page to the navigation rail.

        Args:
            make: Creates the page. It is called when the page is first needed, or soon after the program starts.
        """
        frame = PageFrame()
        self._places[key] = _Place(title, make, frame)
        self.rail.add_page(title, icon_name)
        self.stack.addWidget(frame)
        self.actions_.add_page(key, title, icon_name, len(self._places))

    @property
    def keys(self) -> list[str]:
        """The keys of the pages in the order of the navigation rail."""
        return list(self._places)

    @property
    def current(self) -> str:
        return self._current

    def page(self, key: str) -> QWidget:
        """Returns a page. It is created if necessary."""
        place = self._places[key]
        page = place.frame.page
        if page is None:
            page = place.make()
            place.frame.hold(page)
            if not page.accessibleName():
                page.setAccessibleName(place.title)
            if page.focusPolicy() == Qt.FocusPolicy.NoFocus:
                page.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
            # The actions are also added to the frame, so that their shortcuts work while the page's bar has the focus.
            place.frame.addActions(as_page(page).page_actions())
            changed = getattr(page, "status_changed", None)
            if changed is not None:
                changed.connect(self.refresh_status)
            self.settings.restore_splitters(page)
            self.page_made.emit(key)
        return page

    def has_page(self, key: str) -> bool:
        return key in self._places and self._places[key].frame.page is not None

    def show_page(self, key: str) -> QWidget:
        """Shows a page. Called by shortcuts, the navigation rail and links between pages."""
        page = self.page(key)
        another = key != self._current
        self._current = key
        number = self.keys.index(key)
        self.rail.set_current(number)
        self.stack.setCurrentIndex(number)
        self.refresh_status()
        if another:
            # If the focus were not set here, Qt would focus the first widget of the page.
            focus_body = getattr(page, "focus_body", None)
            if callable(focus_body):
                focus_body()
            else:
                page.setFocus(Qt.FocusReason.OtherFocusReason)
        self.page_shown.emit(key)
        return page

    def make_pages(self) -> None:
        """Creates the remaining pages, one per turn of the event loop, so that the window stays responsive."""
        for key in self._places:
            if not self.has_page(key):
                self.page(key)
                QTimer.singleShot(0, self, self.make_pages)
                return

    def page_actions(self, key: str) -> list[QAction]:
        """Returns the actions of a page. A page that has not been created has no actions."""
        if not self.has_page(key):
            return []
        page = self.page(key)
        more = getattr(page, "more_actions", tuple)
        return [*as_page(page).page_actions(), *more()]

    def all_actions(self) -> Iterator[QAction]:
        """Yields the actions of all pages that have been created, and of the window."""
        for key in self._places:
            yield from self.page_actions(key)
        yield from self.actions_.all()

    def run_action(self, action: QAction) -> None:
        """Shows the page of an action and triggers the action."""
        for key in self._places:
            if action in self.page_actions(key) and key != self._current:
                self.show_page(key)
        action.trigger()

    def cycle_panes(self, backwards: bool = False) -> None:
        """Moves the focus to the next pane (F6), or to the previous one if `backwards`."""
        page = self.page(self._current)
        panes = getattr(page, "panes", None)
        next_pane(self.rail, panes() if callable(panes) else [page], backwards)

    def open_menu(self) -> None:
        """Opens the window's menu (F10), with its first entry selected for the keyboard."""
        self.menu.popup_at(self.rail.menu_button.mapToGlobal(QPoint(self.rail.menu_button.width() + 6, 0)))
        # setActiveAction() would also open the entry's submenu.
        QApplication.sendEvent(
            self.menu, QKeyEvent(QEvent.Type.KeyPress, Qt.Key.Key_Down, Qt.KeyboardModifier.NoModifier)
        )

    def set_fleet_texts(self, texts: list[StatusText], right: str = "") -> None:
        """Sets the summary of the fleet in the status bar, which is shown on all pages."""
        self._fleet_texts = texts
        self._right_text = right
        self.refresh_status()

    def refresh_status(self) -> None:
        page = self._places[self._current].frame.page if self._current else None
        texts = list(as_page(page).status_texts()) if page is not None else []
        self.status_line.say([*self._fleet_texts, *texts], self._right_text)

    def add_bar_above(self, bar: QWidget) -> None:
        self._above.insertWidget(0, bar)

    def say(self, text: str, *, urgent: bool = False) -> None:
        """Shows a short message. `urgent` is for failures."""
        self.toast.say(text, urgent=urgent)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self._was_painted:
            self._was_painted = True
            QTimer.singleShot(0, self, self.painted.emit)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if _file_of(event) is not None:
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        if (path := _file_of(event)) is not None:
            event.acceptProposedAction()
            self.file_dropped.emit(path)

    def closeEvent(self, event: QCloseEvent) -> None:
        pages = [getattr(place.frame.page, "can_close", None) for place in self._places.values()]
        if not all(may_close() for may_close in (*self.before_closing, *filter(callable, pages))):
            event.ignore()
            return
        self.settings.keep(self)
        self.settings.sync()
        self.closed.emit()
        event.accept()

    def _keep_mode(self, mode: Mode) -> None:
        self.settings.mode = mode

    def _lay_out(self) -> None:
        self._middle = QWidget()
        self._above = vbox((self.stack, 1), spacing=0)
        columns = hbox(self.rail, (self._above, 1), spacing=0)
        vbox((columns, 1), self.status_line, parent=self._middle, margins=FLUSH, spacing=0)
        self.setCentralWidget(self._middle)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)


def _file_of(event: QDropEvent) -> Path | None:
    """Returns the path of the dragged file. Returns None if there are several files or the suffix is not supported."""
    urls = event.mimeData().urls()
    if len(urls) == 1 and urls[0].isLocalFile():
        path = Path(urls[0].toLocalFile())
        if path.suffix.lower() in DROPPED:
            return path
    return None


class PageFrame(QWidget):
    """Container of a page, which stays empty until the page is created."""

    def __init__(self) -> None:
        super().__init__()
        self.page: QWidget | None = None
        self._layout = vbox(parent=self, margins=FLUSH, spacing=0)

    def hold(self, page: QWidget) -> None:
        self.page = page
        bar: QWidget | None = getattr(page, "bar", None)
        if bar is not None and bar.parentWidget() is None:
            bar.setFixedHeight(theme().metrics.bar)
            self._layout.addWidget(bar)
        self._layout.addWidget(page, 1)


def next_pane(rail: NavigationRail, panes: Sequence[QWidget], backwards: bool) -> None:
    """Moves the focus to the next pane that contains a focusable widget."""
    around: list[QWidget] = [rail, *(pane for pane in panes if pane.isVisible())]
    focus = QApplication.focusWidget()
    here = next((number for number, pane in enumerate(around) if focus is not None and _within(pane, focus)), 0)
    step = -1 if backwards else 1
    for distance in range(1, len(around) + 1):
        pane = around[(here + step * distance) % len(around)]
        if pane is rail:
            rail.focus_current()
            return
        if (target := _first_field(pane)) is not None:
            target.setFocus(Qt.FocusReason.TabFocusReason)
            return


def _within(pane: QWidget, widget: QWidget) -> bool:
    return pane is widget or pane.isAncestorOf(widget)


def _first_field(pane: QWidget) -> QWidget | None:
    for widget in (pane, *pane.findChildren(QWidget)):
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.isEnabled() and widget.isVisible():
            return widget
    return None


@runtime_checkable
class Page(Protocol):
    """Interface of a page, which is also a QWidget.

    Optional members are `can_close() -> bool`, `panes() -> list[QWidget]` for F6, `focus_body()`, which is called when
    the page is shown, `more_actions()` for actions without shortcuts that are created when a menu or the palette first
    shows them, and a signal `status_changed`.
    """

    title: str
    icon_name: str
    bar: QWidget

    def page_actions(self) -> list[QAction]: ...

    def status_texts(self) -> Iterable[StatusText]: ...


def as_page(widget: QWidget) -> Page:
    """Returns a widget as a Page. A cast is needed, because Python has no intersection types."""
    return cast("Page", widget)
