"""The Bookings page: the calendar with its drawers, dialogs and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QGuiApplication, QHideEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QDialog, QWidget

from torchyard_core.booking.model import Booking, Draft, is_of_cluster
from torchyard_core.booking.search.slot_search import Fit
from torchyard_core.booking.slots import format_slots
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.agenda import Agenda
from torchyard_gui.bookings.calendar.blocks import free_now, is_shown
from torchyard_gui.bookings.calendar.calendar_view import CalendarView
from torchyard_gui.bookings.calendar.cluster_stacking import ClusterStacking, Stacked
from torchyard_gui.bookings.calendar.display_list import DisplayListBuilder
from torchyard_gui.bookings.calendar.lanes import initially_folded
from torchyard_gui.bookings.calendar.time_axis import Span, days_of, local_day, stepped, utc
from torchyard_gui.bookings.commands import HOUR, BookingCommands
from torchyard_gui.bookings.dialogs.booking_form import command_for
from torchyard_gui.bookings.dialogs.dialog_controller import DialogController
from torchyard_gui.bookings.draft_validation import LoadedCalendar, find_loaded_refusal
from torchyard_gui.bookings.drawers.drawer import DrawerLayout
from torchyard_gui.bookings.drawers.drawer_controller import DrawerController
from torchyard_gui.bookings.legend import Legend
from torchyard_gui.bookings.menu_actions import BookingActions
from torchyard_gui.bookings.notifications import Notifications
from torchyard_gui.bookings.top_bar import TopBar
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.clusters.cluster_lanes import ClusterLanes
from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.widgets import EmptyState, NoticeBar
from torchyard_gui.widgets.layouts import FLUSH, vbox

if TYPE_CHECKING:
    from torchyard_core.app.cluster_bookings import MirroredChange

TICK_MS = 20_000
"""Interval in milliseconds at which the calendar is redrawn, so that the line at the current time moves."""


MOST_NODES = 16
"""A cluster with more nodes than this is folded initially."""


class BookingsPage(QWidget):
    """The Bookings page. While the page is visible, it keeps the calendar up to date."""

    status_changed = Signal()
    run_wanted = Signal(str)
    """Emitted with the ID of a run to show."""

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.clusters = ClusterLanes(model, self)
        self.title = self.tr("Bookings")
        self.icon_name = "calendar"
        self.acts = BookingActions(self)
        self.commands = BookingCommands(model, self)
        self.dialogs = DialogController(model, self.commands, self)
        self.bar = TopBar(self.acts)
        self.notice = NoticeBar()
        self.surface = CalendarView()
        self.agenda = Agenda()
        self.empty = EmptyState("", "", icon_name="calendar")
        self.legend = Legend()
        self.drawers = DrawerController(model, self.surface, self.acts, self)
        self.details, self.finder, self.waitlist = self.drawers.details, self.drawers.finder, self.drawers.waitlist
        self.notifications = Notifications(model, self.notice, self.legend, self)
        self.toast = self.notifications.toast
        self.run_on: Callable[[Booking], str] = lambda booking: booking.run_id or ""
        """Returns the ID of the run that uses a booking, or "" if there is none."""
        self.has_live_run: Callable[[Booking], bool] = lambda booking: False
        """Returns whether a run that has not ended uses a booking."""
        self.span: Span = "week"
        self.day = local_day(model.now, model.seen.zone)
        self.folded: set[str] | None = None
        """Folded hosts; None until the first slots are loaded."""
        self._has_folded = False
        """Whether the hosts that are folded initially have been added to `folded`."""
        self._clusters_shown: set[str] = set()
        """The clusters whose nodes have been shown."""
        self._known: LoadedCalendar | None = None
        self._pictures = DisplayListBuilder()
        self._stacking = ClusterStacking()
        self._stacked = Stacked(())
        self._selection = ""
        self._wanted = ""
        """The ID of a booking to show once it is loaded."""
        self._made = ""
        """The ID of a booking that the user has just made or changed, to select once it is loaded."""
        self._clock = QTimer(self, interval=TICK_MS)
        self._clock.timeout.connect(self._tick)
        self.body = DrawerLayout()
        self.body.hold((self.surface, self.agenda, self.empty), self.drawers.all())
        vbox(self.notice, (self.body, 1), self.legend, parent=self, margins=FLUSH, spacing=0)
        self._connect()
        self.refresh()

    def page_actions(self) -> list[QAction]:
        return self.acts.all()

    def status_texts(self) -> Iterable[str]:
        mine = [one for one in self.model.seen.bookings if one.owner == self.model.seen.person]
        running = sum(one.is_running(self.model.now) for one in mine)
        if running == 1:
            return [self.tr("1 of your bookings is running")]
        return [self.tr("{count} of your bookings are running").format(count=running)] if running else []

    def panes(self) -> list[QWidget]:
        return [self.bar, self._view, *filter(None, [self.drawers.current])]

    @property
    def dialog(self) -> QDialog | None:
        return self.dialogs.current

    @property
    def is_agenda(self) -> bool:
        return self.bar.views.value == "agenda"

    @property
    def selected_booking(self) -> Booking | None:
        if not self._selection:
            return None
        known = self.model.booking(self._selection) or self.clusters.booking(self._selection)
        return known or next((one for one in self._stacked.groups if one.id == self._selection), None)

    def close_page(self) -> None:
        """Stops the timers and closes the open dialog; called when the window closes."""
        self._clock.stop()
        self.clusters.close()
        self.dialogs.close()

    def book(self) -> None:
        """Opens the booking dialog. If the keyboard cursor is on free time, the dialog starts with the cursor's GPUs
        and times.
        """
        cursor = self.surface.cursor_
        if cursor is not None and self.surface.block_of(cursor) is None:
            self.dialogs.book_at(self.surface.gpus_of(cursor), cursor.start, cursor.end)
        else:
            self.dialogs.book()

    def edit(self) -> None:
        if (booking := self.selected_booking) is not None:
            self.dialogs.edit(booking)

    def release_or_cancel(self) -> None:
        """Releases or cancels the selected booking after a confirmation."""
        if (booking := self.selected_booking) is not None:
            description = self.surface.booking_tooltip(booking).partition("\n")[2]
            self.dialogs.release_or_cancel(booking, description, has_run=self.has_live_run(booking))

    def cancel_series(self) -> None:
        if (booking := self.selected_booking) is not None and booking.series_id is not None:
            self.dialogs.cancel_series(booking)

    def extend(self, by: timedelta) -> None:
        if (booking := self.selected_booking) is not None:
            self.commands.extend(booking, by)

    def show_run(self) -> None:
        """Shows the run that uses the selected booking."""
        booking = self.selected_booking
        if booking is not None and (run := self.run_on(booking)):
            self.run_wanted.emit(run)

    def copy(self) -> None:
        """Copies the command line that would make the selected booking or, if none is selected, a booking at the
        keyboard cursor.
        """
        seen = self.model.seen
        booking, cursor = self.selected_booking, self.surface.cursor_
        if booking is not None:
            gpus, start, end, title = booking.gpus, booking.start, booking.end, booking.title
        elif cursor is not None:
            gpus, title = self.surface.gpus_of(cursor), self.commands.title
            start, end = utc(cursor.start), utc(cursor.end)
        else:
            return
        QGuiApplication.clipboard().setText(command_for(gpus, start, end, title, replace(seen, slots=self.model.slots)))
        self.toast.say(self.tr("Command copied."))

    def find_slot(self) -> None:
        self.drawers.find_slot()

    def show_waitlist(self) -> None:
        self.drawers.show_waitlist()

    def book_fit(self, number: int) -> None:
        if number < len(self.drawers.fits):
            self.commands.book_fit(self.drawers.fits[number], self.finder.title_.text())
            self.drawers.close()

    def import_bookings(self, path: Path | None = None) -> None:
        self.dialogs.import_bookings(path)

    def go(self, by: int) -> None:
        """Shows the next days (`by` is 1) or the previous days (`by` is -1).

        If today is among these days, today becomes the chosen day, except in the agenda.
        """
        today = local_day(self.model.now, self.model.seen.zone)
        self.day = stepped(self.span, self.day, by)
        if today in days_of(self.span, self.day) and self.span != "agenda":
            self.day = today
        self.show_days()

    def go_today(self) -> None:
        self.day = local_day(self.model.now, self.model.seen.zone)
        self.show_days()

    def show_span(self, span: str) -> None:
        """Shows a day, a week, a month, or the agenda.

        If the keyboard cursor is on one of the shown days, that day becomes the chosen day.
        """
        cursor = self.surface.cursor_
        if cursor is not None and self.surface.axis.starts[0] <= cursor.start < self.surface.axis.days[-1].end:
            self.day = local_day(utc(cursor.start), self.model.seen.zone)
        self.span = cast("Span", span)
        self.show_days()
        self.focus_body()

    def show_booking(self, booking_id: str) -> None:
        """Selects a booking and shows its day, for links from other pages. The booking may be outside the loaded days.

        If the calendar does not show the booking, for example because it was cancelled, a message says so.
        """
        booking = self.model.booking(booking_id)
        if booking is not None:
            self._reveal(booking)
            return
        self.model.ask(lambda store: store.booking(booking_id), self._reveal, self.notifications.show_error, self)

    def fold(self, host: str) -> None:
        folded = self.folded if self.folded is not None else set()
        folded.symmetric_difference_update({host})
        self.refresh()

    def fold_all(self) -> None:
        hosts = {slot.host for slot in self.clusters.merged(self.model.seen).slots}
        self.folded = set() if self.folded else hosts
        self.refresh()

    def select(self, booking_id: str) -> None:
        """Selects a booking and shows its details, unless the drawer to find a slot is open. "" selects no booking."""
        self._selection = booking_id
        if booking_id and booking_id != self._made:
            self._made = ""
        if booking_id and not self.drawers.finds:
            self._show_details()
            self.drawers.show(self.details)
        elif not booking_id:
            self.drawers.close_details()
        self.enable()

    def activate(self, booking_id: str) -> None:
        """Opens the booking dialog, or the details if the booking cannot be changed now.

        Called for Enter or a double click.
        """
        self._selection = booking_id
        booking = self.selected_booking
        if booking is None:
            return
        if self._can_change(booking) and self.model.seen.is_live:
            self.dialogs.edit(booking)
        else:
            self._show_details()
            self.drawers.show(self.details)

    def open_menu(self, at: QPoint) -> None:
        self.acts.menu(self, has_booking=self.selected_booking is not None).popup(at)

    def model_changed(self) -> None:
        seen = self.model.seen
        self.clusters.bookings_changed()
        if not self._has_folded and seen.slots:
            self._has_folded = True
            mine = {gpu for one in seen.bookings if one.owner == seen.person and one.is_live for gpu in one.gpus}
            folded = initially_folded(seen.slots, {slot.host for slot in seen.slots if slot.id in mine})
            self.folded = folded | (self.folded or set())
        self.refresh()
        if self._wanted and (wanted := self.model.booking(self._wanted)) is not None:
            self._reveal(wanted)
        if self._made and self.model.booking(self._made) is not None:
            # The calendar may have been redrawn before the booking was loaded, which has cleared the selection.
            if self.surface.selection != self._made:
                self.surface.select(self._made)
            self._made = ""
        self.drawers.update_results(searching=self.dialog is None)
        self.status_changed.emit()

    def _clusters_changed(self) -> None:
        """Shows the lanes of clusters. The nodes of a large cluster are folded initially."""
        for name, found in self.clusters.calendars.items():
            if name not in self._clusters_shown:
                self._clusters_shown.add(name)
                if len(found.slots) > MOST_NODES:
                    self.folded = {*(self.folded or ()), name}
        self.refresh()

    def _mirrored(self, change: MirroredChange[object]) -> None:
        """Shows why a change of a booking has not reached Slurm yet; the window tries again once a minute.

        Also shows which bookings have ended because their Slurm reservations were deleted.
        """
        if change.errors:
            self.notifications.show_not_mirrored(change.errors[0])
        self._deleted_in_slurm([booking for result in change.mirrored for booking in result.deleted])

    def _deleted_in_slurm(self, bookings: Sequence[Booking]) -> None:
        """Shows which bookings have ended because their Slurm reservations were deleted, and reloads the calendar."""
        if bookings:
            self.notifications.show_deleted_in_slurm([booking.title for booking in bookings])
            self.model.reload()

    def reload(self) -> None:
        """Loads the calendar, and the reservations and jobs of clusters."""
        self.model.reload()
        self.clusters.read()

    def _tick(self) -> None:
        self.refresh()
        self.drawers.renew_results()

    def use_changed(self) -> None:
        """Shows the current GPU use if the page is visible.

        If the drawer to find a slot is open and no dialog is open, also repeats the search, because the search must
        not offer GPUs that are in use.
        """
        if self.isVisible():
            self.refresh()
            self.drawers.update_results(searching=self.dialog is None)

    def refresh(self) -> None:
        """Redraws the calendar from the state that was loaded last."""
        seen, now = self.model.seen, self.model.now
        hosts = self.model.fleet.hosts
        states = {status.name: status.condition.mark for status in hosts}
        states |= {name: self.clusters.mark_of(name) for name in self.clusters.calendars}
        merged = self.clusters.merged(seen)
        self._stacked = self._stacking.of(merged.bookings, seen.zone)
        drawn = replace(merged, bookings=self._stacked.bookings)
        cores = {status.name: status.facts.cpus for status in hosts if status.facts.cpus}
        used = self.model.unbooked_use
        picture = self._pictures.of(
            drawn, now, frozenset(self.folded or ()), self.bar.filter, states, cores, used, self._stacked.bars
        )
        away = "" if seen.is_live or not self.model.has_loaded else labels.unavailable_text(seen, now)
        self._known = LoadedCalendar(seen.bookings, self.model.slots, seen.rules, seen.person, seen.is_admin, now, away)
        picture = replace(picture, notes={**picture.notes, **self.clusters.notes(seen)})
        self.surface.set_picture(picture)
        axis = self.surface.axis
        if self.is_agenda:
            self.agenda.show_bookings(merged, picture, axis.starts[0], axis.days[-1].end, self._selection)
        self.legend.key.set_persons(tuple({one.owner for one in seen.bookings} | {seen.person} - {""}), seen.person)
        self._show_body(bool(drawn.slots))
        self.notifications.show_calendar_source(away)
        self.notifications.show_clusters(self.clusters.errors)
        self.show_free()
        self._show_details()
        self.enable()

    def show_days(self) -> None:
        seen = self.model.seen
        self._show_title()
        self.surface.set_days(self.span, self.day)
        self.model.show(self.surface.axis.since, self.surface.axis.until)
        if self.surface.axis.zone != seen.zone:
            self.refresh()
        self.refresh()

    def _show_title(self) -> None:
        dates = days_of(self.span, self.day)
        self.bar.title.setText(labels.days_title(self.span, dates, is_short=self.bar.is_short))
        self.bar.title.setToolTip(labels.days_title(self.span, dates))

    def show_free(self) -> None:
        seen = self.model.seen
        free, count = free_now(seen.slots, seen.bookings, self.model.in_use, self.model.now)
        self.bar.show_free(free, count, self.model.unwatched_slots, is_known=seen.is_live)

    def enable(self) -> None:
        booking, history = self.selected_booking, self.commands.history
        self.acts.enable(
            self.model.seen,
            booking,
            can_change=booking is not None and self._can_change(booking),
            has_run=booking is not None and bool(self.run_on(booking)),
            undoes=history.done[-1].what if history.done else "",
            redoes=history.undone[-1].what if history.undone else "",
        )
        cursor = self.surface.cursor_
        gpus = booking.gpus if booking is not None else self.surface.gpus_of(cursor) if cursor is not None else ()
        self.acts.copy.setEnabled(bool(gpus) and not (booking is not None and is_of_cluster(booking.id)))

    def refuse(self, gpus: Sequence[str], start: float, end: float, of: Booking | None) -> str:
        """Returns why a change would be refused according to the loaded calendar, or "" if it would be accepted."""
        if self._known is None:
            return ""
        if of is not None and is_of_cluster(of.id):
            return self.tr("Only Slurm changes its jobs and reservations.")
        title = of.title if of is not None else self.commands.title
        draft = Draft(title, tuple(gpus), utc(start), utc(end), of.zone if of is not None else self.model.seen.zone)
        found = find_loaded_refusal(self._known, draft, of)
        return labels.error_text(found) if found is not None else self._reserved_text(draft)

    def _reserved_text(self, draft: Draft) -> str:
        """Returns a text about a Slurm reservation for other users that overlaps the draft in nodes and time, or "" if
        there is none.
        """
        seen = self.model.seen
        found = self.clusters.reservation_at(draft.gpus, draft.interval, seen)
        if found is None:
            return ""
        text = self.tr("{nodes}: {reservation} in Slurm, {time}.")
        when = labels.time_span(found.start, found.end, seen.zone, self.model.now, is_inside=True)
        nodes = format_slots([gpu for gpu in found.gpus if gpu in draft.gpus], self.model.slots)
        return text.format(nodes=nodes, reservation=found.title, time=when)

    def _warn_of_reservation(self, booking: Booking) -> None:
        """Warns the user if nodes of a new or changed booking are reserved for other users in Slurm."""
        draft = Draft(booking.title, booking.gpus, booking.start, booking.end, booking.zone)
        if text := self._reserved_text(draft):
            self.notifications.show_refusal(text)

    def show_fit(self, fit: Fit, number: int) -> None:
        """Selects a found slot in the calendar and scrolls to it.

        Args:
            number: Index of the slot among the found slots.
        """
        if not self.surface.axis.since <= fit.start < self.surface.axis.until:
            self.day = local_day(fit.start, self.model.seen.zone)
            self.show_days()
        hosts = {slot.host for slot in self.model.seen.slots if slot.id in fit.gpus}
        if self.folded and hosts & self.folded:
            self.folded -= hosts
            self.refresh()
        self.surface.show_fit(number)

    def place(self) -> None:
        """Places the drawers beside the calendar, or over it in a narrow window."""
        narrow = self.window().width() < METRICS.narrow_below
        self.bar.set_narrow(narrow)
        self.body.place(self.drawers.current, narrow=narrow)

    def focus_body(self) -> None:
        if not self.bar.search_field.hasFocus():
            self._view.setFocus()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Closes the drawer when Esc is pressed and the calendar does not handle the key."""
        if event.key() == Qt.Key.Key_Escape and self.drawers.current is not None:
            self.drawers.close()
            return
        super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.model.fleet.watch(True, "bookings")
        self.model.watch(True, "bookings")
        self.clusters.watch(True)
        self.notifications.repeat_clusters()
        self._clock.start()
        self.show_days()
        self.model.reload()
        self.focus_body()

    def hideEvent(self, event: QHideEvent) -> None:
        self._clock.stop()
        self.surface.cancel()
        self.model.fleet.watch(False, "bookings")
        self.model.watch(False, "bookings")
        self.clusters.watch(False)
        super().hideEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.place()

    @property
    def _view(self) -> QWidget:
        return self.agenda if self.is_agenda else self.surface

    def _select_made(self, booking_id: str) -> None:
        """Selects a booking that was made or changed. If it is not loaded yet, it is selected once it is loaded."""
        self._made = booking_id
        self.surface.select(booking_id)

    def _show_body(self, has_slots: bool) -> None:
        if self.model.fleet.inventory.clusters:
            text = self.tr("Each node of a cluster has a lane here as soon as the cluster answers.")
            self.empty.set_texts(self.tr("No nodes to book yet"), text)
        else:
            text = self.tr("Add hosts on the Fleet page and check them. Each GPU then has a lane here.")
            self.empty.set_texts(self.tr("No GPUs to book yet"), text)
        self.empty.setVisible(not has_slots and self.model.has_loaded)
        self.surface.setVisible(has_slots and not self.is_agenda)
        self.agenda.setVisible(has_slots and self.is_agenda)

    def _show_details(self) -> None:
        booking = self.selected_booking
        if booking is None:
            self.drawers.close_details()
        else:
            note = self.surface.picture.notes.get(booking.id, "")
            slots = self.clusters.merged(self.model.seen).slots
            self.drawers.show_booking(booking, slots, note, self._can_change(booking), self.run_on(booking))

    def _can_change(self, booking: Booking) -> bool:
        seen = self.model.seen
        mine = (booking.owner == seen.person or seen.is_admin) and not is_of_cluster(booking.id)
        return mine and booking.is_live and booking.end > self.model.now

    def _reveal(self, booking: Booking) -> None:
        self._wanted = "" if self.model.booking(booking.id) is not None else booking.id
        if not is_shown(booking):
            self._wanted = ""
            self.notifications.show_success(
                self.tr("“{title}” was cancelled and is no longer in the calendar.").format(title=booking.title)
            )
            return
        self.day = local_day(booking.start, self.model.seen.zone)
        hosts = {slot.host for slot in self.model.seen.slots if slot.id in booking.gpus}
        if self.folded is not None:
            self.folded -= hosts
        self.show_days()
        if self._wanted:
            self.model.reload()
        else:
            self.surface.select(booking.id)

    def _connect(self) -> None:
        self._connect_actions()
        self._connect_views()
        self._connect_drawers()
        self.legend.share_wanted.connect(self.dialogs.team_calendar)
        self.notice.action_triggered.connect(lambda number: self.model.reload())
        self.body.resized.connect(self.place)
        for part in (self.commands, self.dialogs):
            part.succeeded.connect(self.notifications.show_success)
            part.failed.connect(self.notifications.show_error)
        self.commands.undoable.connect(lambda text: self.notifications.show_success(text, self.acts.undo))
        self.dialogs.closed.connect(lambda: self.surface.set_cursor(None))
        self.dialogs.closed.connect(self.focus_body)
        self.commands.done.connect(self._select_made)
        self.commands.made.connect(self._warn_of_reservation)
        self.commands.working.connect(self.notifications.show_progress)
        self.model.mirrored.connect(self._mirrored)
        self.commands.redoable.connect(lambda text: self.notifications.show_success(text, self.acts.redo))
        self.commands.history_changed.connect(self.enable)
        self.model.changed.connect(self.model_changed)
        self.clusters.changed.connect(self._clusters_changed)
        self.clusters.deleted.connect(self._deleted_in_slurm)
        self.model.settled.connect(self.notifications.show_settled)
        self.model.use_changed.connect(self.use_changed)

    def _connect_actions(self) -> None:
        acts, views = self.acts, self.bar.views
        acts.connect_to(
            {
                acts.book: self.book,
                acts.find: self.find_slot,
                acts.edit: self.edit,
                acts.extend: lambda: self.extend(HOUR),
                acts.shorten: lambda: self.extend(-HOUR),
                acts.release: self.release_or_cancel,
                acts.cancel_series: self.cancel_series,
                acts.run: self.show_run,
                acts.undo: self.commands.undo,
                acts.redo: self.commands.redo,
                acts.paste: self.dialogs.paste,
                acts.copy: self.copy,
                acts.search: self.bar.open_search,
                acts.today: self.go_today,
                acts.earlier: lambda: self.go(-1),
                acts.later: lambda: self.go(1),
                acts.day: lambda: views.set_value("day"),
                acts.week: lambda: views.set_value("week"),
                acts.month: lambda: views.set_value("month"),
                acts.agenda: lambda: views.set_value("agenda"),
                acts.fold: self.fold_all,
                acts.refresh: self.reload,
                acts.waitlist: self.show_waitlist,
                acts.usage: self.dialogs.usage_report,
                acts.export: self.dialogs.export,
                acts.import_: self.import_bookings,
                acts.rules: self.dialogs.rules,
                acts.team: self.dialogs.team_calendar,
            }
        )
        self.addActions(acts.all())

    def _connect_views(self) -> None:
        surface, agenda, bar = self.surface, self.agenda, self.bar
        surface.refuse = self.refuse
        surface.book_wanted.connect(self.dialogs.book_at)
        surface.change_wanted.connect(self.commands.change)
        surface.refused.connect(self.notifications.show_refusal)
        surface.selected.connect(self.select)
        surface.activated.connect(self.activate)
        surface.fold_wanted.connect(self.fold)
        surface.step_wanted.connect(self.go)
        surface.fit_wanted.connect(self.book_fit)
        surface.fit_pressed.connect(self.drawers.choose_fit)
        surface.context_requested.connect(self.open_menu)
        agenda.chosen.connect(self.select)
        agenda.activated_.connect(self.activate)
        bar.views.changed.connect(self.show_span)
        bar.changed_form.connect(self._show_title)
        bar.filter_changed.connect(lambda chosen: self.refresh())
        bar.filter_menu.aboutToShow.connect(lambda: bar.offer(self.clusters.merged(self.model.seen)))

    def _connect_drawers(self) -> None:
        finder, waitlist, drawers = self.finder, self.waitlist, self.drawers
        finder.book_wanted.connect(self.book_fit)
        finder.wait_wanted.connect(lambda wish: self.commands.wait(wish, finder.title_.text()))
        waitlist.leave_wanted.connect(self.commands.stop_waiting)
        waitlist.join_wanted.connect(self.find_slot)
        drawers.changed.connect(self.place)
        drawers.left.connect(self.focus_body)
        drawers.fit_chosen.connect(self.show_fit)
