"""The actions of the Bookings page, with text, shortcut and menu."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from torchyard_core.booking.model import Booking
from torchyard_gui.bridge.bookings_model import CalendarState
from torchyard_gui.widgets.page_actions import PageActions


class BookingActions(PageActions):
    """QActions for the menus and buttons of the page. The page connects the actions to its methods."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        tr = self.tr
        self.book = self._make("run", tr("Book …"), "plus", "Ctrl+N", tr("Book GPUs for exact times"))
        self.find = self._make(
            "run", tr("Find a slot"), "search", "Ctrl+Shift+F", tr("Show the first five free slots that fit")
        )
        self.edit = self._make(
            "edit", tr("Edit booking …"), "edit", "Ctrl+E", tr("Change GPUs, times and title of the selected booking")
        )
        self.extend = self._make(
            "edit", tr("Extend by an hour"), "plus", "+", tr("End the selected booking an hour later")
        )
        self.shorten = self._make(
            "edit", tr("Shorten by an hour"), "minus", "-", tr("End the selected booking an hour earlier")
        )
        tip = tr("Release the GPUs of the selected booking")
        self.release = self._make("edit", tr("Release or cancel"), "trash", "Delete", tip)
        self.release.setProperty("danger", True)
        tip = tr("Cancel the bookings of the series that have not begun")
        self.cancel_series = self._make("edit", tr("Cancel the series"), "repeat", "Shift+Delete", tip)
        self.run = self._make("view", tr("Show run"), "runs", "Ctrl+R", tr("Go to the run that uses the booking"))
        self.undo = self._make("edit", tr("Undo"), "undo", "Ctrl+Z", tr("Undo your own last change"))
        self.redo = self._make("edit", tr("Redo"), "redo", "Ctrl+Shift+Z", tr("Make the undone change again"))
        self.redo.setShortcuts([self.redo.shortcut(), QKeySequence("Ctrl+Y")])
        tip = tr("Book from the clipboard: gpu-b:2-5 tomorrow 9-17")
        self.paste = self._make("edit", tr("Paste a booking"), "paste", "Ctrl+V", tip)
        copy = tr("Copy as a command")
        self.copy = self._make(
            "edit", copy, "copy", "Ctrl+Shift+C", tr("Copy the command line that makes the same booking")
        )
        tip = tr("Search titles, purposes, owners")
        self.search = self._make("edit", tr("Find bookings"), "search", "Ctrl+F", tip)
        self.today = self._make("view", tr("Today"), "calendar", "T", tr("Show today"))
        self.earlier = self._make("view", tr("Earlier"), "chevron-left", "Alt+Left", tr("Show the days before"))
        self.later = self._make("view", tr("Later"), "chevron-right", "Alt+Right", tr("Show the days after"))
        self.day = self._make("view", tr("Day"), "", "Alt+1", tr("Show one day"))
        self.week = self._make("view", tr("Week"), "", "Alt+2", tr("Show a week"))
        self.month = self._make("view", tr("Month"), "", "Alt+3", tr("Show a month"))
        self.agenda = self._make("view", tr("Agenda"), "table", "Alt+4", tr("Show the bookings as a table"))
        tip = tr("Show the lanes of all hosts, or one row per host")
        self.fold = self._make("view", tr("Fold or unfold all hosts"), "list", "Ctrl+Shift+L", tip)
        self.refresh = self._make("view", tr("Reload"), "refresh", "F5", tr("Load the calendar again"))
        self.waitlist = self._make(
            "run", tr("Waitlist"), "clock", "Ctrl+Shift+W", tr("Requests that are waiting for GPUs")
        )
        self.usage = self._make("run", tr("Usage report …"), "chart", "Ctrl+Shift+U", tr("Booked, used and idle hours"))
        self.export = self._make("file", tr("Export your bookings …"), "download", "", tr("As an .ics calendar file"))
        self.import_ = self._make("file", tr("Import bookings …"), "upload", "", tr("From an .ics calendar file"))
        tip = tr("Join, create or leave the calendar that a team shares")
        self.team = self._make("file", tr("Team calendar …"), "fleet", "", tip)
        self.rules = self._make("run", tr("Rules …"), "gear", "", tr("The team's rules; admins can change them"))

    def enable(
        self, seen: CalendarState, booking: Booking | None, *, can_change: bool, has_run: bool, undoes: str, redoes: str
    ) -> None:
        """Enables or disables the actions for the selected booking and the state of the calendar.

        `undoes` describes the change that Undo would revert, and `redoes` the change that Redo would make again. Each
        is "" if there is no such change.
        """
        can = can_change and seen.is_live
        for action in (self.edit, self.extend, self.shorten, self.release):
            action.setEnabled(can)
        self.cancel_series.setEnabled(can and booking is not None and booking.series_id is not None)
        self.run.setEnabled(has_run)
        for action in (self.book, self.find, self.paste, self.import_, self.export, self.usage, self.rules):
            action.setEnabled(seen.is_live)
        self._name_rules(is_admin=seen.is_admin)
        for action, what in ((self.undo, undoes), (self.redo, redoes)):
            action.setEnabled(bool(what) and seen.is_live)
            action.setText(f"{action.iconText()}: {what}" if what else action.iconText())

    def menu(self, parent: QWidget, *, has_booking: bool) -> QMenu:
        """Returns a new context menu, which is deleted when it closes."""
        menu = QMenu(parent)
        if has_booking:
            menu.addActions([self.edit, self.extend, self.shorten, self.release, self.cancel_series, self.run])
            menu.addSeparator()
        menu.addActions([self.book, self.find, self.paste, self.copy, self.undo, self.redo])
        menu.aboutToHide.connect(menu.deleteLater)
        return menu

    def _name_rules(self, *, is_admin: bool) -> None:
        """Sets the text of the action for the rules, which only admins can change."""
        self.rules.setText(self.tr("Rules …") if is_admin else self.tr("Show the rules"))
        self.rules.setToolTip(self.tr("Change the team's rules") if is_admin else self.tr("Show the team's rules"))
