"""Commands of the Bookings page: changes to bookings in the store, with undo and redo."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from PySide6.QtCore import QObject, Signal

from torchyard_core.app.book_gpus import BookGpus
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.model import Booking, Draft, is_of_cluster
from torchyard_core.booking.search.slot_search import Fit, Wish
from torchyard_core.booking.slots import format_slots
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.time_axis import utc
from torchyard_gui.bookings.undo import (
    BookingChange,
    CalendarChange,
    ChangeHistory,
    PartlyRefused,
    changed,
    ended,
    made,
)
from torchyard_gui.bridge.bookings_model import BookingsModel

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

Result = TypeVar("Result")
HOUR = timedelta(hours=1)


class BookingCommands(QObject):
    """Makes changes to bookings, each on a background thread.

    The signals `undoable`, `redoable` and `succeeded` are emitted with a message for the user, and `failed` with an
    error.
    """

    undoable = Signal(str)
    """Emitted with the description of a change that `undo` can revert."""
    redoable = Signal(str)
    """Emitted with the description of an undone change that `redo` can make again."""
    succeeded = Signal(str)
    failed = Signal(object)
    working = Signal(str)
    """Emitted with a message for the user before a change that also changes a reservation in Slurm, which is slow."""
    done = Signal(str)
    """Emitted with the ID of a booking that was created or changed; for several bookings, with the ID of the first."""
    made = Signal(object)
    """Emitted with a booking that was created or changed, after the message for the user has been emitted."""
    history_changed = Signal()

    def __init__(self, model: BookingsModel, parent: QObject):
        super().__init__(parent)
        self.model = model
        self.history = ChangeHistory()
        self._waiting: deque[bool] = deque()
        """Pending requests to undo (True) or redo (False). They are processed one after another."""
        self._is_busy = False

    def draft(self, gpus: Sequence[str], start: float, end: float, title: str = "") -> Draft:
        """Returns a draft of a booking for the user. Without `title`, the draft has the default title."""
        return Draft(title or self.title, tuple(gpus), utc(start), utc(end), self.model.seen.zone)

    @property
    def title(self) -> str:
        """The title that a new booking has by default."""
        return self.tr("Reserved")

    def book(self, draft: Draft) -> None:
        self._act(lambda store: BookGpus(store).book(draft).booked, self.booked, draft.gpus)

    def _act(
        self,
        deed: Callable[[BookingStore], Result],
        done: Callable[[Result], None],
        gpus: Iterable[str],
        failed: Callable[[TorchyardError], None] | None = None,
    ) -> None:
        """Changes bookings of the given GPUs or nodes. For nodes, emits `working` first, because changing their
        reservation in Slurm takes time.
        """
        nodes = [gpu for gpu in gpus if is_of_cluster(gpu)]
        if nodes:
            self.working.emit(self.tr("Changing the reservation in Slurm …"))
        self.model.act(deed, done, failed or self.failed.emit, self, nodes)

    def book_fit(self, fit: Fit, title: str) -> None:
        self.book(Draft(title.strip() or self.title, fit.gpus, fit.start, fit.end, self.model.seen.zone))

    def booked(self, new: tuple[Booking, ...]) -> None:
        """Records new bookings, so that the user can undo them."""
        first = new[0]
        self._remember(self.tr("book “{title}”").format(title=first.title), made(new))
        if len(new) > 1:
            self.undoable.emit(self.tr("{count} bookings of “{title}” made").format(count=len(new), title=first.title))
        else:
            self.undoable.emit(self.tr("Booked: {what}").format(what=self._summary(first)))
        self.made.emit(first)
        self.done.emit(first.id)

    def change(self, booking: Booking, gpus: Sequence[str], start: float, end: float) -> None:
        """Changes the GPUs or times of a booking. Only changed values are sent to the store.

        The store refuses a booking that has been changed since it was loaded.
        """
        changes: dict[str, Any] = {
            "gpus": tuple(gpus) if tuple(sorted(gpus)) != booking.gpus else None,
            "start": utc(start) if start != booking.start.timestamp() else None,
            "end": utc(end) if end != booking.end.timestamp() else None,
        }
        self._act(
            lambda store: store.change(booking.id, **changes, expected=booking),
            lambda after: self.changed(after, booking),
            gpus,
        )

    def changed(self, after: Booking, before: Booking) -> None:
        self._remember(self.tr("change “{title}”").format(title=before.title), changed([before], [after]))
        self.undoable.emit(self.tr("Changed: {what}").format(what=self._summary(after)))
        self.made.emit(after)
        self.done.emit(after.id)

    def series_changed(self, after: Sequence[Booking], before: Sequence[Booking]) -> None:
        self._remember(self.tr("change the series “{title}”").format(title=before[0].title), changed(before, after))
        if len(after) == 1:
            self.undoable.emit(self.tr("Changed: {what}").format(what=self._summary(after[0])))
        else:
            self.undoable.emit(
                self.tr("{count} bookings of “{title}” changed").format(count=len(after), title=after[0].title)
            )
        self.done.emit(after[0].id)

    def extend(self, booking: Booking, by: timedelta) -> None:
        """Moves the end of a booking by `by`; a negative value shortens the booking."""
        end = booking.end + by
        if end <= booking.start:
            text = self.tr("“{title}” is too short to be shortened by that much.").format(title=booking.title)
            self.failed.emit(TorchyardError(text))
            return
        self.change(booking, booking.gpus, booking.start.timestamp(), end.timestamp())

    def release_or_cancel(self, booking: Booking) -> None:
        """Releases a running booking, or cancels a booking that has not begun."""

        def gone(after: Booking) -> None:
            running = after.let_go_at is not None and after.let_go_at > after.start
            what = self.tr("release “{title}”") if running else self.tr("cancel “{title}”")
            self._remember(what.format(title=booking.title), ended([after]))
            text = self.tr("Released: {what}") if running else self.tr("Cancelled: {what}")
            self.undoable.emit(text.format(what=self._summary(booking)))

        self._act(lambda store: store.cancel(booking.id), gone, booking.gpus)

    def cancel_series(self, booking: Booking, since: datetime | None = None) -> None:
        """Cancels the bookings of a series that have not begun.

        With `since`, only bookings that begin at or after that time are cancelled.
        """
        series = booking.series_id
        if series is None:
            return

        def gone(cancelled: tuple[Booking, ...]) -> None:
            if cancelled:
                self._remember(self.tr("cancel the series “{title}”").format(title=booking.title), ended(cancelled))
            if len(cancelled) == 1:
                text = self.tr("1 booking of “{title}” cancelled")
            else:
                text = self.tr("{count} bookings of “{title}” cancelled")
            (self.undoable if cancelled else self.succeeded).emit(
                text.format(count=len(cancelled), title=booking.title)
            )

        self._act(lambda store: store.cancel_series(series, since), gone, booking.gpus)

    def forget(self) -> None:
        """Forgets all changes. Called when another calendar is opened."""
        self._waiting.clear()
        self.history = ChangeHistory()  # A new object, because an undo or redo in progress still uses the old one.
        self.history_changed.emit()

    def undo(self) -> None:
        """Undoes the user's last change that has not been undone.

        If a booking was changed in the meantime, or if the store refuses the change, the booking stays as it is and the
        change can no longer be undone. If the calendar is unreachable, the change can be undone later.
        """
        self._step(undoes=True)

    def redo(self) -> None:
        """Redoes the last undone change. Refusals are handled as in `undo`."""
        self._step(undoes=False)

    def _step(self, *, undoes: bool) -> None:
        self._waiting.append(undoes)
        if not self._is_busy:
            self._next_step()

    def _next_step(self) -> None:
        if not self._waiting:
            return
        undoes = self._waiting.popleft()
        history = self.history
        source, target = (history.done, history.undone) if undoes else (history.undone, history.done)
        if not source:
            self._waiting.clear()
            return
        change = source.pop()
        self._is_busy = True
        self.history_changed.emit()

        def stepped(applied: CalendarChange) -> None:
            target.append(applied.reverted if undoes else applied)
            message = self.tr("Undone: {what}") if undoes else self.tr("Redone: {what}")
            (self.redoable if undoes else self.undoable).emit(message.format(what=change.what))
            finished()

        def failed(error: TorchyardError) -> None:
            if isinstance(error, StoreUnavailable):
                source.append(change)
            elif isinstance(error, PartlyRefused):
                target.append(error.part.reverted if undoes else error.part)
            self._waiting.clear()
            self.failed.emit(error)
            finished()

        def finished() -> None:
            self._is_busy = False
            self.history_changed.emit()
            self._next_step()

        wanted = change.reverted if undoes else change
        gpus = [gpu for one in wanted.bookings for gpu in one.either.gpus]
        self._act(lambda store: history.apply(store, wanted), stepped, gpus, failed)

    def wait(self, wish: Wish, title: str) -> None:
        """Adds a request to the waitlist."""
        zone = self.model.seen.zone
        self.model.act(
            lambda store: store.wait(wish, title.strip() or self.title, zone),
            lambda _: self.succeeded.emit(self.tr("You are on the waitlist.")),
            self.failed.emit,
            self,
        )

    def stop_waiting(self, waiting_id: str) -> None:
        self.model.act(
            lambda store: store.stop_waiting(waiting_id),
            lambda _: self.succeeded.emit(self.tr("You have left the waitlist.")),
            self.failed.emit,
            self,
        )

    def _summary(self, booking: Booking) -> str:
        seen = self.model.seen
        when = labels.time_span(booking.start, booking.end, seen.zone, self.model.now, is_inside=True)
        return f"{format_slots(booking.gpus, self.model.slots)}, {when}"

    def _remember(self, what: str, bookings: tuple[BookingChange, ...]) -> None:
        self.history.add(CalendarChange(what, bookings))
        self.history_changed.emit()
