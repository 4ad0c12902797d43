"""Opens and fills the drawers beside the calendar (details, find a slot, waitlist), at most one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from torchyard_core.booking.change_history import Change
from torchyard_core.booking.model import Booking, Slot, is_of_cluster
from torchyard_core.booking.search.slot_search import Fit, Wish, used_until
from torchyard_core.booking.slots import format_slots
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.calendar_view import CalendarView
from torchyard_gui.bookings.calendar.lanes import gpu_models
from torchyard_gui.bookings.drawers.details_drawer import DetailsDrawer
from torchyard_gui.bookings.drawers.drawer import Drawer
from torchyard_gui.bookings.drawers.find_slot_drawer import FindSlotDrawer
from torchyard_gui.bookings.drawers.waitlist_drawer import WaitlistDrawer
from torchyard_gui.bookings.history_labels import HistoryView, change_headline, change_lines
from torchyard_gui.bookings.menu_actions import BookingActions
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.bookings_model import BookingsModel

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

PASSED_FOR = timedelta(minutes=1)
"""How long after its start a free slot is still offered."""


class DrawerController(QObject):
    """Opens and fills the drawers. While the drawer to find a slot is open, the calendar shows the slots that were
    found.
    """

    changed = Signal()
    """Emitted when a drawer has been opened or closed. The page then updates its layout."""
    left = Signal()
    """Emitted when the calendar should get the keyboard focus."""
    fit_chosen = Signal(object, int)
    """Emitted with the selected Fit and its index."""

    def __init__(self, model: BookingsModel, surface: CalendarView, acts: BookingActions, parent: QObject):
        super().__init__(parent)
        self.model = model
        self.surface = surface
        self.details = DetailsDrawer(acts)
        self.finder = FindSlotDrawer()
        self.waitlist = WaitlistDrawer()
        self.current: Drawer | None = None
        self.fits: tuple[Fit, ...] = ()
        self._searching: Job | None = None
        self._history_of: Booking | None = None
        """The booking whose history was requested last."""
        self.finder.wished.connect(self._search)
        self.finder.chosen_changed.connect(self.choose_fit)
        for drawer in self.all():
            drawer.closed.connect(self.close)

    def all(self) -> tuple[Drawer, ...]:
        return self.details, self.finder, self.waitlist

    @property
    def finds(self) -> bool:
        """Returns whether the drawer to find a slot is open."""
        return self.current is self.finder

    def find_slot(self) -> None:
        self.show(self.finder)
        self.finder.count.setFocus()
        self.finder.count.selectAll()
        self.finder.search()

    def show_waitlist(self) -> None:
        self.show(self.waitlist)
        self.waitlist.setFocus()

    def show(self, drawer: Drawer) -> None:
        if self.current is drawer:
            return
        if self.current is not None:
            self.current.hide()
        self.current = drawer
        if drawer is self.finder:
            seen = self.model.seen
            self.finder.zone, self.finder.now = seen.zone, lambda: self.model.now
            slots = self.model.slots
            self.finder.offer_models(gpu_models(slot for slot in slots if not slot.node))
            clusters = sorted({slot.host for slot in slots if slot.node})
            has_gpus = any(not slot.node and not slot.is_cpu for slot in slots)
            self.finder.offer_clusters(clusters, has_gpus=has_gpus)
        else:
            self._forget_fits()
        drawer.show()
        drawer.raise_()
        self.changed.emit()

    def close(self, *, focus: bool = True) -> None:
        was, self.current = self.current, None
        if was is not None:
            was.hide()
        if was is self.details:
            self.surface.select_quietly("")  # Otherwise, another click on the booking would not open the details.
        self._forget_fits()
        self.changed.emit()
        if focus:
            self.left.emit()

    def choose_fit(self, number: int) -> None:
        """Selects a found slot in the list and in the calendar without booking it."""
        if 0 <= number < len(self.fits):
            self.finder.choose(number)
            self.fit_chosen.emit(self.fits[number], number)

    def close_details(self) -> None:
        if self.current is self.details:
            self.close(focus=False)

    def show_booking(self, booking: Booking, slots: Sequence[Slot], note: str, can_change: bool, run_id: str) -> None:
        """Fills the drawer with the details of a booking, or of a job or reservation of a cluster.

        If the calendar is reachable, also requests the booking's history, unless the drawer already shows the same
        version of this booking.
        """
        seen = self.model.seen
        self.details.show_booking(booking, slots, seen.person, seen.zone, self.model.now, note, can_change, run_id)
        if is_of_cluster(booking.id):
            self._history_of = booking
        elif seen.is_live and booking != self._history_of:
            self._history_of = booking
            self.model.ask(
                lambda store: store.history(booking.id),
                lambda changes: self._show_history(booking, changes),
                lambda _: None,
                owner=self,
            )

    def renew_results(self) -> None:
        """Repeats an open search if one of the found slots began more than `PASSED_FOR` ago.

        The store would refuse to book such a slot, because a booking cannot begin in the past.
        """
        if self.finds and any(fit.start < self.model.now - PASSED_FOR for fit in self.fits):
            self.finder.search()

    def update_results(self, *, searching: bool) -> None:
        """Updates the waitlist after a change of the calendar. If `searching`, also repeats an open search for
        slots.
        """
        seen = self.model.seen
        self.waitlist.show_waiting(seen.waiting, seen.person, seen.is_admin, seen.zone, self.model.now)
        if searching and self.finds and not self.finder.isHidden():
            self.finder.search()

    def _show_history(self, booking: Booking, changes: Sequence[Change]) -> None:
        if booking != self._history_of:
            return
        seen = self.model.seen
        view = HistoryView(seen.slots, seen.person, seen.zone, self.model.now)
        self.details.show_history([(change_headline(one, view), change_lines(one, view)) for one in changes])

    def _forget_fits(self) -> None:
        self.fits = ()
        self.surface.set_fits(())

    def _search(self, wish: Wish) -> None:
        in_use = self.model.unbooked_use
        nodes = [slot for slot in self.model.node_slots if slot.host in wish.hosts]

        def look(store: BookingStore) -> tuple[tuple[Fit, ...], tuple[Fit, ...]]:
            if nodes:  # The store searches only the slots that are recorded in it.
                store.remember_slots(nodes)
            fits = store.find(wish, 5, zone, in_use)
            return fits, store.find(wish, 1, zone) if in_use else fits[:1]

        def found(answer: tuple[tuple[Fit, ...], tuple[Fit, ...]]) -> None:
            if self.finds:
                self.fits, unbooked = answer
                self.finder.show_fits(self.fits, unbooked, self.model.slots, self.model.now, self._at_most())
                self.surface.set_fits(self.fits, self.finder.chosen)

        def failed(error: TorchyardError) -> None:
            self._forget_fits()
            self.finder.show_problem_text(labels.error_text(error))

        if self._searching is not None:
            self._searching.cancel()  # Results may arrive in any order. Only the result of the latest request is shown.
        zone = self.model.seen.zone
        self._searching = self.model.ask(look, found, failed, self)

    def _at_most(self) -> str:
        """Returns a text about the GPUs that are free now, such as `Now: at most 3 free on one host (gpu-d).`

        If GPUs are in use without a booking, the text also names these GPUs and the time from which they are offered.
        """
        if self.finder.cluster:
            return self.tr("Slurm's jobs and reservations are not considered.")
        seen, now = self.model.seen, self.model.now
        booked = {gpu for one in seen.bookings if one.is_running(now) for gpu in one.gpus}
        used = self.model.unbooked_use
        taken = booked | used.keys()
        free: dict[str, int] = {}
        for slot in seen.slots:
            if not slot.is_cpu and not slot.node and slot.id not in taken:
                free[slot.host] = free.get(slot.host, 0) + 1
        if free:
            host = max(free, key=lambda name: free[name])
            text = self.tr("Now: at most {count} free on one host ({host}).").format(count=free[host], host=host)
        else:
            text = self.tr("Now: no GPU is free.")
        offered_later = sorted(slot.id for slot in seen.slots if slot.id in used)
        if not offered_later:
            return text
        when = labels.clock(used_until(now), seen.zone)
        unbooked = self.tr("In use without a booking, offered from {time}: {gpus}.")
        return f"{text} {unbooked.format(time=when, gpus=format_slots(offered_later, seen.slots))}"
