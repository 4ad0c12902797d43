"""The bar above the calendar: shown days, filter, number of free GPUs, and the button to book."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QSize, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.lanes import gpu_models
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bookings.menu_actions import BookingActions
from torchyard_gui.bridge.bookings_model import CalendarState
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets import ElidedLabel, SearchField, Segmented, label
from torchyard_gui.widgets.buttons import action_button, push_button, tool_button
from torchyard_gui.widgets.layouts import clear_menu, hbox

translate = QCoreApplication.translate


class TopBar(QFrame):
    """Bar above the calendar. Emits `filter_changed` with the new filter."""

    filter_changed = Signal(object)

    def __init__(self, acts: BookingActions, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("bar", True)
        self.filter = Filter()
        self.title = ElidedLabel(role="title")
        self.title.setMinimumWidth(172)
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
        self.find_button = _button(acts.find, "search", "text")
        self.book_button = _button(acts.book, "plus", "on_accent")
        self.book_button.setProperty("primary", True)
        left = (self.title, 3), self._steps(acts), self.views, self.filter_button, (self.search_field, 1), self.free
        right = (None, 1), self.find_button, self.book_button, self.more
        hbox(*left, *right, parent=self, margins=(16, 0, 12, 0), spacing=8)
        self.search_field.textChanged.connect(self._search)

    def set_narrow(self, narrow: bool) -> None:
        """Hides the search field in a narrow window unless the field is in use."""
        self.search_field.setVisible(not narrow or bool(self.search_field.text()) or self.search_field.hasFocus())

    def open_search(self) -> None:
        self.search_field.show()
        self.search_field.setFocus()

    def show_free(self, free: int, all_: int, *, is_known: bool) -> None:
        """Shows a text such as `Free now: 4 of 24 GPUs`, with a question mark while the calendar is unreachable."""
        if not all_:
            self.free.setText("")
            return
        text = self.tr("Free now: {free} of {all} GPUs").format(free=free if is_known else "?", all=all_)
        self.free.setText(text)
        self.free.setToolTip(self.tr("Neither booked nor in use. GPUs without a booking may be used at any time."))

    def offer(self, seen: CalendarState) -> None:
        """Fills the menu of the filter."""
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
            menu.addAction(title).setEnabled(False)  # With a style sheet, Qt does not draw the title of a menu section.
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
        text = self.tr("All") if not names else names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"
        self.filter_button.setText(text if len(text) <= 18 else f"{text[:17]}…")
        self.filter_changed.emit(chosen)

    def _steps(self, acts: BookingActions) -> QHBoxLayout:
        row = hbox(spacing=2)
        for action in (acts.earlier, acts.today, acts.later):
            if action is acts.today:
                row.addWidget(push_button(action.text(), action.trigger, tip=action.toolTip()))
                continue
            button = tool_button("", action.toolTip(), action.trigger, by_tab=True)
            button.setIcon(action.icon())
            button.setAccessibleName(action.text())
            button.setIconSize(QSize(16, 16))
            row.addWidget(button)
        return row


def _more(acts: BookingActions) -> QToolButton:
    button = tool_button("more", translate("TopBar", "Undo, waitlist, usage, calendar files, rules"), by_tab=True)
    button.setAccessibleName(translate("TopBar", "More"))
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    menu = QMenu(button)
    menu.addAction(acts.undo)
    menu.addSeparator()
    menu.addActions([acts.waitlist, acts.usage])
    menu.addSeparator()
    menu.addActions([acts.export, acts.import_])
    menu.addSeparator()
    menu.addActions([acts.rules, acts.fold])
    button.setMenu(menu)
    return button


def _button(action: QAction, icon_name: str, color: str) -> QPushButton:
    button = action_button(action, action.iconText())
    button.setIcon(icon(icon_name, color))
    return button


def _persons(bookings: Sequence[Booking], me: str) -> list[str]:
    return sorted({booking.owner for booking in bookings}, key=lambda name: (name != me, name))
