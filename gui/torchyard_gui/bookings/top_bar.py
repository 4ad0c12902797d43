"""The bar above the calendar: the shown days, the filter, the number of free GPUs, and the button to book."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QSize, QTimer, Signal
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from torchyard_core.booking.model import Booking, Slot
from torchyard_gui.bookings.calendar.lanes import gpu_models
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bookings.menu_actions import BookingActions
from torchyard_gui.bridge.bookings_model import CalendarState
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets import ElidedLabel, SearchField, Segmented, label
from torchyard_gui.widgets.buttons import action_button, push_button, tool_button
from torchyard_gui.widgets.layouts import clear_menu, hbox

translate = QCoreApplication.translate
TITLE, TITLE_SHORT = 172, 128
"""Minimum width of the title in pixels, in the long and in the short form of the bar."""
SPACING = 8
FILTER, FILTER_SHORT = 18, 7
"""Maximum number of characters on the filter button, in the long and in the short form of the bar."""
SHORT_BELOW = 1130
"""Width of the bar in pixels below which the bar has its short form."""


class TopBar(QFrame):
    """Bar above the calendar. Emits `filter_changed` with the new filter."""

    filter_changed = Signal(object)
    changed_form = Signal()
    """Emitted when the bar switches to its long or its short form."""

    def __init__(self, acts: BookingActions, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("bar", True)
        self.filter = Filter()
        self.title = ElidedLabel(role="title")
        self.is_short = False
        """Whether the bar is in its short form."""
        self.views = Segmented(
            [
                ("day", self.tr("Day")),
                ("week", self.tr("Week")),
                ("month", self.tr("Month")),
                ("agenda", self.tr("Agenda")),
            ]
        )
        self.views.set_value("week")
        self.views.setAccessibleName(self.tr("View"))
        self.views.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.search_field = SearchField(self.tr("Find …"))
        self.search_field.setMinimumWidth(92)
        self.search_field.setMaximumWidth(150)
        self.free = label(role="strong")
        self.filter_button = QPushButton(icon("filter"), self.tr("All"))
        self.filter_button.setToolTip(self.tr("Show only some hosts, GPU models or owners"))
        self.filter_menu = QMenu(self)
        self.filter_button.setMenu(self.filter_menu)
        self.filter_menu.triggered.connect(self._chosen)
        self.more = _more(acts)
        self.title.setMinimumWidth(TITLE)
        self.find_button = _button(acts.find, "search", "text")
        self._find_text = self.find_button.text()
        self.find_button.setAccessibleName(self._find_text)
        self._narrow = False
        self._filter_text = ""
        self._free_texts = "", ""
        """A sentence about the free GPUs, and its short form."""
        self.book_button = _button(acts.book, "plus", "on_accent")
        self.book_button.setProperty("primary", True)
        left = (self.title, 3), self._steps(acts), self.views, self.filter_button, (self.search_field, 1), self.free
        right = (None, 1), self.find_button, self.book_button, self.more
        hbox(*left, *right, parent=self, margins=(16, 0, 12, 0), spacing=SPACING)
        self.search_field.textChanged.connect(self._search)
        self.search_field.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.FocusOut and watched is self.search_field:
            QTimer.singleShot(0, self, lambda: self.set_narrow(self._narrow))
        return False

    def set_narrow(self, narrow: bool) -> None:
        """Sets whether the window is narrow. In a narrow window, the search field is visible only while it is used."""
        self._narrow = narrow
        searches = bool(self.search_field.text()) or self.search_field.hasFocus()
        self.search_field.setVisible(not narrow or searches)
        for widget in (self.filter_button, self.free):
            widget.setVisible(not (self.is_short and searches))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Switches between the long and the short form.

        The short form has shorter labels and shows *Find a slot* as an icon. During a search in the short form, the
        search field replaces the filter and the number of free GPUs.
        """
        super().resizeEvent(event)
        is_short = event.size().width() < SHORT_BELOW
        if is_short != self.is_short:
            self.is_short = is_short
            self.title.setMinimumWidth(TITLE_SHORT if is_short else TITLE)
            self.find_button.setText("" if is_short else self._find_text)
            self.free.setText(self._free_texts[is_short])
            self._show_filter()
            layout = self.layout()
            if layout is not None:
                layout.setSpacing(SPACING - 2 if is_short else SPACING)
            self.set_narrow(self._narrow)
            self.changed_form.emit()

    def open_search(self) -> None:
        self.search_field.show()
        self.search_field.setFocus()
        self.set_narrow(self._narrow)

    def show_free(self, free: int, all_: int, unknown: Sequence[Slot] = (), *, is_known: bool) -> None:
        """Shows `Free now: 4 of 24 GPUs`, with `?` in place of `4` while the calendar is unreachable.

        `unknown` contains the GPUs whose use is unknown. These GPUs count as free unless they are booked.
        """
        shown = {"free": free if is_known else "?", "all": all_}
        of_all = self.tr("Free now: {free} of 1 GPU") if all_ == 1 else self.tr("Free now: {free} of {all} GPUs")
        self._free_texts = (
            of_all.format(**shown) if all_ else "",
            self.tr("{free} of {all} free").format(**shown) if all_ else "",
        )
        self.free.setText(self._free_texts[self.is_short])
        tip = self.tr("Neither booked nor in use.")
        if hosts := sorted({slot.host for slot in unknown}):
            names = ", ".join(hosts[:5]) + (" …" if len(hosts) > 5 else "")
            tip += "\n" + self.tr("Not connected, so that use is unknown: {hosts}").format(hosts=names)
        self.free.setToolTip(tip)

    def offer(self, seen: CalendarState) -> None:
        clear_menu(self.filter_menu)
        self._offer(self.tr("Hosts"), "hosts", sorted({slot.host for slot in seen.slots}))
        self._offer(self.tr("GPU models"), "models", gpu_models(seen.slots))
        self._offer(self.tr("Owners"), "persons", _persons(seen.bookings, seen.person))
        self.filter_menu.addSeparator()
        everything = self.filter_menu.addAction(self.tr("Show all"))
        everything.setData(("", ""))
        everything.setEnabled(not self.filter.is_empty)

    def _offer(self, title: str, kind: str, values: Sequence[str]) -> None:
        chosen: frozenset[str] = getattr(self.filter, kind)
        if len(values) < 2 and not chosen:
            return
        menu = self.filter_menu if kind != "hosts" or len(values) <= 12 else self.filter_menu.addMenu(title)
        if menu is self.filter_menu:
            menu.addSeparator()
            menu.addAction(title).setEnabled(False)  # Under a style sheet, QMenu.addSection() would draw no title.
        for value in values:
            action = menu.addAction(value)
            action.setCheckable(True)
            action.setChecked(value in chosen)
            action.setData((kind, value))

    def _chosen(self, action: QAction) -> None:
        kind, value = action.data()
        if not kind:
            self._take(Filter(text=self.filter.text))
            return
        chosen: frozenset[str] = getattr(self.filter, kind)
        chosen = chosen | {value} if action.isChecked() else chosen - {value}
        self._take(Filter(**{**self.filter.__dict__, kind: chosen}))

    def _search(self, text: str) -> None:
        self._take(Filter(**{**self.filter.__dict__, "text": text}))

    def _take(self, chosen: Filter) -> None:
        self.filter = chosen
        names = [*sorted(chosen.hosts), *sorted(chosen.models), *sorted(chosen.persons)]
        self._filter_text = "" if not names else names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"
        self._show_filter()
        self.filter_changed.emit(chosen)

    def _show_filter(self) -> None:
        text = self._filter_text or ("" if self.is_short else self.tr("All"))
        most = FILTER_SHORT if self.is_short else FILTER
        self.filter_button.setText(text if len(text) <= most else f"{text[: most - 1]}…")
        self.filter_button.setAccessibleName(self.tr("Filter: {what}").format(what=self._filter_text or self.tr("All")))

    def _steps(self, acts: BookingActions) -> QHBoxLayout:
        row = hbox(spacing=2)
        for action in (acts.earlier, acts.today, acts.later):
            if action is acts.today:
                row.addWidget(push_button(action.text(), action.trigger, tip=action.toolTip()))
                continue
            button = tool_button("", action.toolTip(), action.trigger)
            button.setIcon(action.icon())
            button.setAccessibleName(action.text())
            button.setIconSize(QSize(16, 16))
            row.addWidget(button)
        return row


def _more(acts: BookingActions) -> QToolButton:
    button = tool_button(
        "more", translate("TopBar", "Undo, redo, waitlist, usage, calendar files, rules, team calendar")
    )
    button.setAccessibleName(translate("TopBar", "More"))
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    menu = QMenu(button)
    menu.addActions([acts.undo, acts.redo])
    menu.addSeparator()
    menu.addActions([acts.waitlist, acts.usage])
    menu.addSeparator()
    menu.addActions([acts.export, acts.import_])
    menu.addSeparator()
    menu.addActions([acts.rules, acts.team, acts.fold])
    button.setMenu(menu)
    return button


def _button(action: QAction, icon_name: str, color: str) -> QPushButton:
    button = action_button(action, action.iconText())
    button.setIcon(icon(icon_name, color))
    return button


def _persons(bookings: Sequence[Booking], me: str) -> list[str]:
    return sorted({booking.owner for booking in bookings}, key=lambda name: (name != me, name))
