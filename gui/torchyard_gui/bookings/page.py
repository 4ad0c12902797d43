"""The Bookings page: who has which GPUs when, and how to get some."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from PySide6.QtCore import QPoint, QRect, QTimer, Signal
from PySide6.QtGui import QAction, QGuiApplication, QHideEvent, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QDialog, QMenu, QVBoxLayout, QWidget

from torchyard_core.booking.find_slot import Fit, Wish
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.naming import name_slots
from torchyard_core.booking.refusals import Refused
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import words
from torchyard_gui.bookings.actions import BookingActions
from torchyard_gui.bookings.agenda import Agenda
from torchyard_gui.bookings.blocks import free_now
from torchyard_gui.bookings.booking_dialog import BookingDialog
from torchyard_gui.bookings.booking_form import written
from torchyard_gui.bookings.deeds import HOUR, Deeds
from torchyard_gui.bookings.details import Details
from torchyard_gui.bookings.drawer import Drawer
from torchyard_gui.bookings.find_drawer import FindDrawer
from torchyard_gui.bookings.lanes import folded_at_first, short_model
from torchyard_gui.bookings.legend import Legend
from torchyard_gui.bookings.pasted import read_draft
from torchyard_gui.bookings.picture import picture_of
from torchyard_gui.bookings.refusing import Known, known, refusal
from torchyard_gui.bookings.surface import Surface
from torchyard_gui.bookings.time_axis import Span, days_of, local_day, stepped, utc
from torchyard_gui.bookings.top_bar import TopBar
from torchyard_gui.bookings.waitlist_drawer import WaitlistDrawer
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.jobs import Job
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.widgets import EmptyState, NoticeBar, Toast, label
from torchyard_gui.widgets.question import Question

TICK_MS = 20_000
"""How often the now-line moves."""


class BookingsPage(QWidget):
    """Looks at the calendar while it is shown; what others change arrives by itself."""

    status_changed = Signal()

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.title = self.tr("Bookings")
        self.icon_name = "calendar"
        self.acts = BookingActions(self)
        self.deeds = Deeds(model, self)
        self.bar = TopBar(self.acts)
        self.notice = NoticeBar()
        self.surface = Surface()
        self.agenda = Agenda()
        self.empty = EmptyState(
            self.tr("No GPUs to book yet"),
            self.tr("Add your hosts on the Fleet page and check them: each GPU that is found gets a lane here."),
            icon_name="calendar",
        )
        self.legend = Legend()
        self.details = Details(self.acts)
        self.finder = FindDrawer()
        self.waitlist = WaitlistDrawer()
        self.toast = Toast(self)
        self.dialog: QDialog | None = None
        """The one that is open."""
        self.span: Span = "week"
        self.day = local_day(model.now, model.seen.zone)
        self.folded: set[str] | None = None
        """Hosts that are; None until the first slots are there."""
        self._known: Known | None = None
        self._fits: tuple[Fit, ...] = ()
        self._drawer: Drawer | None = None
        self._clock = QTimer(self)
        self._clock.setInterval(TICK_MS)
        self._clock.timeout.connect(self._show)
        self._lay_out()
        self._connect()
        self._show()

    # -- what the window asks

    def page_actions(self) -> list[QAction]:
        return self.acts.all()

    def status_texts(self) -> Iterable[str]:
        mine = [one for one in self.model.seen.bookings if one.owner == self.model.seen.person]
        running = sum(one.is_running(self.model.now) for one in mine)
        return [self.tr("{count} of your bookings run").format(count=running)] if running else []

    def panes(self) -> list[QWidget]:
        """For F6."""
        return [self.bar, self.agenda if self._is_agenda else self.surface, *filter(None, [self._drawer])]

    # -- what people do

    def book(self) -> None:
        """Asks for exact times; what the keyboard is on is filled in."""
        cursor = self.surface.cursor_
        seen = self.model.seen
        if cursor is not None and self.surface.block_of(cursor) is None:
            self.book_at(self.surface.gpus_of(cursor), cursor.start, cursor.end)
            return
        start = self.model.now.replace(second=0, minute=0) + HOUR
        self._open(BookingDialog(self.model, Draft("", (), start, start + HOUR * 4, seen.zone), parent=self))

    def book_at(self, gpus: Sequence[str], start: float, end: float) -> None:
        """The dialog with these GPUs and times: Enter books them."""
        self._open(BookingDialog(self.model, self.deeds.draft(gpus, start, end), parent=self))

    def edit(self) -> None:
        booking = self._one()
        if booking is not None:
            draft = Draft(
                booking.title,
                booking.gpus,
                booking.start,
                booking.end,
                booking.zone,
                booking.purpose,
                stop_at_end=booking.stop_at_end,
            )
            self._open(BookingDialog(self.model, draft, booking, self))

    def paste(self) -> None:
        """Books what is on the clipboard, once it was confirmed in the dialog."""
        seen = self.model.seen
        text = QGuiApplication.clipboard().text().strip()
        try:
            draft = read_draft(text, seen.slots, seen.zone, self.model.now, self.deeds.title)
        except Refused as refused:
            self.notice.show_notice("warn", words.said(refused))
            return
        self._open(BookingDialog(self.model, draft, parent=self))

    def copy(self) -> None:
        """The command that books the same."""
        seen = self.model.seen
        booking, cursor = self._one(), self.surface.cursor_
        if booking is not None:
            gpus, start, end, title = booking.gpus, booking.start, booking.end, booking.title
        elif cursor is not None:
            gpus, title = self.surface.gpus_of(cursor), self.deeds.title
            start, end = utc(cursor.start), utc(cursor.end)
        else:
            return
        names = name_slots(gpus, seen.slots).replace(", ", ",")
        times = ["--from", written(start, seen.zone), "--to", written(end, seen.zone), "--zone", seen.zone]
        QGuiApplication.clipboard().setText(shlex.join(["torchyard", "book", names, *times, "--title", title]))
        self.toast.say(self.tr("The command is on the clipboard."))

    def let_go(self) -> None:
        """Asks before it releases or cancels."""
        booking = self._one()
        if booking is None:
            return
        running = booking.is_running(self.model.now)
        question = self.tr("Release “{title}” now?") if running else self.tr("Cancel “{title}”?")
        yes = self.tr("Release") if running else self.tr("Cancel the booking")
        told = self.surface.told_of(booking).partition("\n")[2]
        dialog = Question(question.format(title=booking.title), told, yes, self.tr("Keep"), self)
        dialog.accepted.connect(lambda: self.deeds.let_go(booking))
        self._open(dialog)

    def find_slot(self) -> None:
        self._show_drawer(self.finder)
        self.finder.count.setFocus()
        self.finder.count.selectAll()
        self.finder.search()

    def show_waitlist(self) -> None:
        self._show_drawer(self.waitlist)
        self.waitlist.setFocus()

    def book_fit(self, number: int) -> None:
        if number < len(self._fits):
            self.deeds.book_fit(self._fits[number], self.finder.title_.text())
            self._close_drawer()

    def go(self, by: int) -> None:
        self.day = stepped(self.span, self.day, by)
        self._show_days()

    def go_today(self) -> None:
        self.day = local_day(self.model.now, self.model.seen.zone)
        self._show_days()

    def show_span(self, span: str) -> None:
        """Day, week, month; or the agenda of the days shown."""
        if span != "agenda":
            self.span = span  # type: ignore[assignment]
        self._show_days()
        self._focus_body()

    def show_booking(self, booking_id: str) -> None:
        """Goes to a booking, wherever it is: for links from other pages."""
        booking = self.model.booking(booking_id)
        if booking is not None:
            self._reveal(booking)
            return
        self.model.ask(lambda store: store.booking(booking_id), self._reveal, self._failed, self)

    def fold(self, host: str) -> None:
        folded = self.folded if self.folded is not None else set()
        folded.symmetric_difference_update({host})
        self._show()

    def fold_all(self) -> None:
        hosts = {slot.host for slot in self.model.seen.slots}
        self.folded = set() if self.folded else hosts
        self._show()

    def usage_report(self) -> None:
        from torchyard_gui.bookings.usage_dialog import UsageDialog

        self._open(UsageDialog(self.model, self))

    def export(self) -> None:
        from torchyard_gui.bookings.calendar_files import export_bookings

        export_bookings(self.model, self, self.toast.say, self._say_failed)

    def import_bookings(self, path: Path | None = None) -> None:
        from torchyard_gui.bookings.calendar_files import ImportDialog, choose_file

        path = path or choose_file(self)
        if path is not None:
            dialog = ImportDialog(self.model, path, self)
            dialog.imported.connect(self.deeds.booked)
            self._open(dialog)

    def edit_rules(self) -> None:
        from torchyard_gui.bookings.rules_dialog import RulesDialog

        self._open(RulesDialog(self.model, self))

    # -- events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.model.fleet.watch(True, "bookings")
        self._clock.start()
        self._show_days()
        self.model.reload()
        self._focus_body()

    def hideEvent(self, event: QHideEvent) -> None:
        self._clock.stop()
        self.surface.cancel()
        self.model.fleet.watch(False, "bookings")
        super().hideEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def close_page(self) -> None:
        """Lets go of what the page holds; called when the window closes."""
        self._clock.stop()
        if self.dialog is not None:
            self.dialog.close()

    # -- inside

    def _connect(self) -> None:
        acts = self.acts
        acts.connect_to(
            {
                acts.book: self.book,
                acts.find: self.find_slot,
                acts.edit: self.edit,
                acts.extend: lambda: self._stretch(HOUR),
                acts.shorten: lambda: self._stretch(-HOUR),
                acts.release: self.let_go,
                acts.cancel_series: self._cancel_series,
                acts.undo: self.deeds.undo,
                acts.paste: self.paste,
                acts.copy: self.copy,
                acts.search: self.bar.open_search,
                acts.today: self.go_today,
                acts.earlier: lambda: self.go(-1),
                acts.later: lambda: self.go(1),
                acts.day: lambda: self.bar.views.set_value("day"),
                acts.week: lambda: self.bar.views.set_value("week"),
                acts.month: lambda: self.bar.views.set_value("month"),
                acts.agenda: lambda: self.bar.views.set_value("agenda"),
                acts.fold: self.fold_all,
                acts.refresh: self.model.reload,
                acts.waitlist: self.show_waitlist,
                acts.usage: self.usage_report,
                acts.export: self.export,
                acts.import_: self.import_bookings,
                acts.rules: self.edit_rules,
            }
        )
        for widget in (self, self.bar):
            widget.addActions(acts.all())
        surface = self.surface
        surface.refuse = self._refuse
        surface.book_wanted.connect(self.book_at)
        surface.change_wanted.connect(self.deeds.change)
        surface.refused.connect(lambda reason: self.notice.show_notice("warn", reason))
        surface.selected.connect(self._selected)
        surface.activated.connect(self._activated)
        surface.fold_wanted.connect(self.fold)
        surface.step_wanted.connect(self.go)
        surface.fit_wanted.connect(self.book_fit)
        surface.context_requested.connect(self._open_menu)
        self.agenda.chosen.connect(self._selected)
        self.agenda.activated_.connect(self._activated)
        self.bar.views.changed.connect(self.show_span)
        self.bar.filter_changed.connect(lambda chosen: self._show())
        self.bar.filter_menu.aboutToShow.connect(lambda: self.bar.offer(self.model.seen))
        self.finder.wished.connect(self._search)
        self.finder.book_wanted.connect(self.book_fit)
        self.finder.pointed.connect(self._point_at)
        self.finder.wait_wanted.connect(lambda wish: self.deeds.wait(wish, self.finder.title_.text()))
        self.waitlist.leave_wanted.connect(self.deeds.stop_waiting)
        self.waitlist.join_wanted.connect(self.find_slot)
        for drawer in (self.finder, self.waitlist, self.details):
            drawer.closed.connect(self._close_drawer)
        self.legend.share_wanted.connect(self._tell_how_to_share)
        self.deeds.said.connect(self._said)
        self.deeds.failed.connect(self._say_failed)
        self.deeds.done.connect(lambda booking_id: surface.select(booking_id))
        self.deeds.undo_changed.connect(self._enable)
        self.model.changed.connect(self._model_changed)
        self.model.settled.connect(self._settled)
        self.model.fleet.use_changed.connect(lambda name: self._say_free())

    def _model_changed(self) -> None:
        seen = self.model.seen
        if self.folded is None and seen.slots:
            mine = {gpu for one in seen.bookings if one.owner == seen.person and one.is_live for gpu in one.gpus}
            self.folded = folded_at_first(seen.slots, {slot.host for slot in seen.slots if slot.id in mine})
        self._show()
        self.waitlist.show_waiting(seen.waiting, seen.person, seen.is_admin, seen.zone, self.model.now)
        if self.dialog is None and self._drawer is self.finder and not self.finder.isHidden():
            self.finder.search()  # what was found may be taken, or something nearer free
        self.status_changed.emit()

    def _show(self) -> None:
        """Draws the calendar as it was last seen."""
        seen, now = self.model.seen, self.model.now
        states = {status.name: _mark(status.state) for status in self.model.fleet.hosts}
        cores = {status.name: status.facts.cpus for status in self.model.fleet.hosts if status.facts.cpus}
        picture = picture_of(seen, now, frozenset(self.folded or ()), self.bar.filter, states, cores)
        away = "" if seen.is_live or not self.model.has_loaded else self._away()
        self._known = known(seen.bookings, seen.slots, seen.rules, seen.person, seen.is_admin, now, away)
        self.surface.set_picture(picture)
        axis = self.surface.axis
        if self._is_agenda:
            self.agenda.show_bookings(seen, picture, axis.starts[0], axis.days[-1].end)
        self.legend.key.set_persons(tuple({one.owner for one in seen.bookings} | {seen.person} - {""}), seen.person)
        self._show_body(bool(seen.slots))
        self._say_place(away)
        self._say_free()
        self._show_details()
        self._enable()

    def _show_days(self) -> None:
        seen = self.model.seen
        dates = days_of(self.span, self.day)
        self.bar.title.setText(words.title_of(self.span, dates))
        self.surface.set_days(self.span, self.day)
        self.model.show(self.surface.axis.since, self.surface.axis.until)
        if self.surface.axis.zone != seen.zone:
            self._show()
        self._show_body(bool(seen.slots))
        self._show()

    def _show_body(self, has_slots: bool) -> None:
        agenda = self._is_agenda
        loaded = self.model.has_loaded
        self.empty.setVisible(not has_slots and loaded)
        self.surface.setVisible(has_slots and not agenda)
        self.agenda.setVisible(has_slots and agenda)

    @property
    def _is_agenda(self) -> bool:
        return self.bar.views.value == "agenda"

    def _away(self) -> str:
        seen = self.model.seen
        if seen.as_of is None:
            return self.tr("The calendar is not there, and nothing of it is known here. Nothing can be booked.")
        when = words.clock(seen.as_of, seen.zone)
        if local_day(seen.as_of, seen.zone) != local_day(self.model.now, seen.zone):
            when = f"{words.day_name(local_day(seen.as_of, seen.zone), 'ddd d MMM')} {when}"
        age = words.length(max(0.0, (self.model.now - seen.as_of).total_seconds()))
        return self.tr(
            "The calendar is away. This is of {when}, {age} ago; nothing can be booked until it is back."
        ).format(when=when, age=age)

    def _say_place(self, away: str) -> None:
        seen = self.model.seen
        if away:
            self.notice.show_notice("warn", f"{away} {seen.why}".strip(), self.tr("Try again"), closable=False)
            self._is_away = True
        elif self._is_away:
            self._is_away = False
            self.notice.clear()
        if not self.model.has_loaded:
            self.legend.say_place(self.tr("Opening the calendar …"), is_private=False)
        elif away:
            self.legend.say_place(self.tr("away"), is_private=False)
        elif seen.is_private:
            self.legend.say_place(self.tr("Only on this computer."), is_private=True)
        else:
            self.legend.say_place(self.tr("PostgreSQL · in step"), is_private=False)
        self.legend.place.setToolTip(seen.place)

    _is_away = False

    def _say_free(self) -> None:
        seen = self.model.seen
        free, count = free_now(seen.slots, seen.bookings, self.model.in_use, self.model.now)
        self.bar.say_free(free, count, is_known=seen.is_live)

    def _refuse(self, gpus: Sequence[str], start: float, end: float, of: Booking | None) -> str:
        """Why that cannot be, by what is loaded: asked while dragging."""
        if self._known is None:
            return ""
        title = of.title if of is not None else self.deeds.title
        draft = Draft(title, tuple(gpus), utc(start), utc(end), of.zone if of is not None else self.model.seen.zone)
        found = refusal(self._known, draft, of)
        return words.said(found) if found is not None else ""

    def _one(self) -> Booking | None:
        return self.model.booking(self._selection)

    _selection = ""

    def _selected(self, booking_id: str) -> None:
        self._selection = booking_id
        if booking_id and self._drawer is not self.finder:
            self._show_details()
            self._show_drawer(self.details)
        elif not booking_id and self._drawer is self.details:
            self._close_drawer(focus=False)
        self._enable()

    def _show_details(self) -> None:
        booking = self._one()
        if booking is None:
            if self._drawer is self.details:
                self._close_drawer(focus=False)
            return
        seen, now = self.model.seen, self.model.now
        self.details.show_booking(
            booking,
            seen.slots,
            seen.person,
            seen.zone,
            now,
            self.surface.picture.notes.get(booking.id, ""),
            self._can_change(booking),
        )

    def _can_change(self, booking: Booking) -> bool:
        seen = self.model.seen
        mine = booking.owner == seen.person or seen.is_admin
        return mine and booking.is_live and booking.end > self.model.now

    def _enable(self) -> None:
        booking = self._one()
        acts, live = self.acts, self.model.seen.is_live
        can = booking is not None and self._can_change(booking) and live
        for action in (acts.edit, acts.extend, acts.shorten, acts.release):
            action.setEnabled(can)
        acts.cancel_series.setEnabled(can and booking is not None and booking.series_id is not None)
        for action in (acts.book, acts.find, acts.paste, acts.import_, acts.export, acts.usage, acts.rules):
            action.setEnabled(live)
        last = self.deeds.last
        acts.undo.setEnabled(last is not None and live)
        acts.undo.setText(self.tr("Undo: {what}").format(what=last.what) if last else self.tr("Undo"))
        acts.copy.setEnabled(booking is not None or self.surface.cursor_ is not None)

    def _activated(self, booking_id: str) -> None:
        """Enter or a double click: one's own is edited, of another's all is shown."""
        self._selection = booking_id
        booking = self._one()
        if booking is None:
            return
        if self._can_change(booking) and self.model.seen.is_live:
            self.edit()
        else:
            self._show_details()
            self._show_drawer(self.details)

    def _stretch(self, by: timedelta) -> None:
        if (booking := self._one()) is not None:
            self.deeds.stretch(booking, by)

    def _cancel_series(self) -> None:
        booking = self._one()
        if booking is None or booking.series_id is None:
            return
        question = self.tr("Cancel the series “{title}”?").format(title=booking.title)
        told = self.tr("All of it that has not begun is taken out of the calendar.")
        dialog = Question(question, told, self.tr("Cancel the series"), self.tr("Keep"), self)
        dialog.accepted.connect(lambda: self.deeds.cancel_series(booking))
        self._open(dialog)

    def _search(self, wish: Wish) -> None:
        def found(fits: tuple[Fit, ...]) -> None:
            if self._drawer is self.finder:
                self._fits = fits
                self.surface.set_fits(fits)
                self.finder.show_fits(fits, self.model.seen.slots, self.model.now, self._at_most())

        def failed(error: TorchyardError) -> None:
            self._fits = ()
            self.surface.set_fits(())
            self.finder.say_problem(words.said(error))

        if self._searching is not None:
            self._searching.cancel()  # answers may come in any order; only the last wish counts
        self._searching = self.model.ask(lambda store: store.find(wish, limit=5), found, failed, self)

    _searching: Job | None = None

    def _at_most(self) -> str:
        """`Now: at most 3 free on one host (gpu-d).`"""
        seen, now = self.model.seen, self.model.now
        booked = {gpu for one in seen.bookings if one.is_running(now) for gpu in one.gpus}
        taken = booked | self.model.in_use
        free: dict[str, int] = {}
        for slot in seen.slots:
            if not slot.is_cpu and slot.id not in taken:
                free[slot.host] = free.get(slot.host, 0) + 1
        if not free:
            return self.tr("Now: no GPU is free.")
        host = max(free, key=lambda name: free[name])
        return self.tr("Now: at most {count} free on one host ({host}).").format(count=free[host], host=host)

    def _point_at(self, number: int) -> None:
        fit = self._fits[number]
        if not self.surface.axis.since <= fit.start < self.surface.axis.until:
            self.day = local_day(fit.start, self.model.seen.zone)
            self._show_days()
        hosts = {slot.host for slot in self.model.seen.slots if slot.id in fit.gpus}
        if self.folded and hosts & self.folded:
            self.folded -= hosts
            self._show()
        self.surface.show_fit(number)

    def _reveal(self, booking: Booking) -> None:
        self.day = local_day(booking.start, self.model.seen.zone)
        self._show_days()
        hosts = {slot.host for slot in self.model.seen.slots if slot.id in booking.gpus}
        if self.folded is not None:
            self.folded -= hosts
        self._show()
        self.surface.select(booking.id)

    def _open_menu(self, at: QPoint) -> None:
        menu = QMenu(self)
        acts = self.acts
        if self._one() is not None:
            menu.addActions([acts.edit, acts.extend, acts.shorten, acts.release, acts.cancel_series])
            menu.addSeparator()
        menu.addActions([acts.book, acts.find, acts.paste, acts.copy, acts.undo])
        menu.aboutToHide.connect(menu.deleteLater)
        menu.popup(at)

    def _open(self, dialog: QDialog) -> None:
        if self.dialog is not None:
            self.dialog.close()
        self.dialog = dialog
        if isinstance(dialog, BookingDialog):
            dialog.booked.connect(self.deeds.booked)
            dialog.changed.connect(self.deeds.changed)
        dialog.finished.connect(self._dialog_closed)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _dialog_closed(self) -> None:
        self.dialog = None
        self.surface.set_cursor(None)
        self._focus_body()

    def _show_drawer(self, drawer: Drawer) -> None:
        if self._drawer is not drawer:
            if self._drawer is not None:
                self._drawer.hide()
            self._drawer = drawer
            if drawer is self.finder:
                seen = self.model.seen
                self.finder.zone, self.finder.now = seen.zone, lambda: self.model.now
                self.finder.offer_models(_models(seen.slots))
            else:
                self._fits = ()
                self.surface.set_fits(())
            drawer.show()
            drawer.raise_()
            self._place()

    def _close_drawer(self, *, focus: bool = True) -> None:
        if self._drawer is not None:
            self._drawer.hide()
        self._drawer = None
        self._fits = ()
        self.surface.set_fits(())
        self._place()
        if focus:
            self._focus_body()

    def _focus_body(self) -> None:
        if not self.bar.search_field.hasFocus():
            (self.agenda if self._is_agenda else self.surface).setFocus()

    def _said(self, text: str) -> None:
        self.toast.say(text)
        if not self._is_away:
            self.notice.clear()

    def _say_failed(self, text: str) -> None:
        self.notice.show_notice("warn", text)

    def _failed(self, error: TorchyardError) -> None:
        self._say_failed(words.said(error))

    def _settled(self, freed: int, served: int) -> None:
        parts = []
        if freed:
            parts.append(self.tr("{count} bookings were idle, and are free now.").format(count=freed))
        if served:
            parts.append(self.tr("{count} who waited have their booking.").format(count=served))
        self.notice.show_notice("info", " ".join(parts))

    def _tell_how_to_share(self) -> None:
        dialog = Question(
            self.tr("Share the calendar with the team"),
            self.tr(
                "This calendar is a file on this computer: nobody else sees it. A team keeps its calendar in a "
                "PostgreSQL database. An admin of an empty one runs the first command; it prints the line that each "
                "member puts into settings.yaml. The second takes along what is booked here."
            ),
            self.tr("Copy the first command"),
            self.tr("Close"),
            self,
        )
        command = "torchyard bookings setup-team postgresql+psycopg://ADMIN@HOST/DATABASE --admin NAME --member NAME"
        for text in (command, "torchyard bookings move-to postgresql+psycopg://NAME@HOST/DATABASE"):
            line = label(text, role="small", ink="2", wrap=True)
            line.setTextInteractionFlags(line.textInteractionFlags().TextSelectableByMouse)
            dialog.rows.addWidget(line)
        dialog.yes.setProperty("danger", False)
        dialog.accepted.connect(lambda: QGuiApplication.clipboard().setText(command))
        self._open(dialog)

    def _lay_out(self) -> None:
        self._body = _Ground()
        for widget in (self.surface, self.agenda, self.empty, self.details, self.finder, self.waitlist):
            widget.setParent(self._body)
            widget.hide()
        rows = QVBoxLayout(self)
        rows.setContentsMargins(0, 0, 0, 0)
        rows.setSpacing(0)
        rows.addWidget(self.notice)
        rows.addWidget(self._body, 1)
        rows.addWidget(self.legend)
        self._body.resized.connect(self._place)
        self.notice.action_triggered.connect(lambda number: self.model.reload())

    def _place(self) -> None:
        """Drawers stand beside the calendar; in a narrow window they lie over it."""
        room = self._body.rect()
        drawer = self._drawer
        narrow = self.window().width() < METRICS.narrow_below
        self.bar.set_narrow(narrow)
        beside = METRICS.drawer if drawer is not None and not narrow else 0
        for widget in (self.surface, self.agenda, self.empty):
            widget.setGeometry(QRect(0, 0, room.width() - beside, room.height()))
        if drawer is not None:
            drawer.setGeometry(QRect(room.width() - METRICS.drawer, 0, METRICS.drawer, room.height()))


class _Ground(QWidget):
    """What calendar and drawers lie on."""

    resized = Signal()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit()

    def paintEvent(self, event: QPaintEvent) -> None:
        QPainter(self).fillRect(self.rect(), theme().color("s0"))


def _mark(state: str) -> str:
    """A host's state, by the names of `paint_state`."""
    return {"ready": "ok", "degraded": "warning", "unknown": "unknown"}.get(state, "failed")


def _models(slots: Sequence[Slot]) -> list[str]:
    return sorted({short_model(slot) for slot in slots if not slot.is_cpu})
