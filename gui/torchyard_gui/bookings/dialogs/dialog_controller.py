"""Opens the dialogs of the Bookings page, at most one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QComboBox, QDialog, QWidget

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft
from torchyard_gui.bookings.commands import HOUR, BookingCommands
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.bookings.paste_parser import read_draft
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets.dialogs import ConfirmationDialog


class DialogController(QObject):
    """Opens dialogs over the page and passes the results to `BookingCommands`."""

    closed = Signal()
    succeeded = Signal(str)
    failed = Signal(object)

    def __init__(self, model: BookingsModel, commands: BookingCommands, page: QWidget):
        super().__init__(page)
        self.model = model
        self.commands = commands
        self.current: QDialog | None = None
        """The open dialog, or None."""
        self._page = page

    def book(self, gpus: Sequence[str] = (), length: timedelta = HOUR * 4) -> None:
        """Opens the booking dialog for a new booking of the given length, from the next full hour."""
        start = self.model.now.replace(second=0, minute=0) + HOUR
        draft = Draft("", tuple(gpus), start, start + length, self.model.seen.zone)
        self._open(BookingDialog(self.model, draft, parent=self._page))

    def book_at(self, gpus: Sequence[str], start: float, end: float) -> None:
        """Opens the booking dialog with the given GPUs and times."""
        self._open(BookingDialog(self.model, self.commands.draft(gpus, start, end), parent=self._page))

    def edit(self, booking: Booking) -> None:
        draft = Draft(
            booking.title,
            booking.gpus,
            booking.start,
            booking.end,
            booking.zone,
            booking.purpose,
            stop_at_end=booking.stop_at_end,
        )
        self._open(BookingDialog(self.model, draft, booking, self._page))

    def paste(self) -> None:
        """Opens the booking dialog with values parsed from the clipboard's text. Emits `failed` if the text cannot be
        parsed.
        """
        seen = self.model.seen
        text = QGuiApplication.clipboard().text().strip()
        try:
            draft = read_draft(text, self.model.slots, seen.zone, self.model.now, self.commands.title)
        except Refused as refused:
            self.failed.emit(refused)
            return
        self._open(BookingDialog(self.model, draft, parent=self._page))

    def release_or_cancel(self, booking: Booking, description: str, *, has_run: bool = False) -> None:
        """Asks for a confirmation, then releases or cancels the booking. `description` is shown in the question.

        If a run uses the booking (`has_run`), the question says so.
        """
        if has_run:
            description += "\n" + self.tr("A run is on it. The run goes on without the booking.")
        running = booking.is_running(self.model.now)
        question = self.tr("Release “{title}” now?") if running else self.tr("Cancel “{title}”?")
        yes = self.tr("Release") if running else self.tr("Cancel the booking")
        dialog = ConfirmationDialog(question.format(title=booking.title), description, yes, self.tr("Keep"), self._page)
        dialog.accepted.connect(lambda: self.commands.release_or_cancel(booking))
        self._open(dialog)

    def cancel_series(self, booking: Booking) -> None:
        question = self.tr("Cancel the series “{title}”?").format(title=booking.title)
        description = self.tr("Bookings that have begun stay in the calendar.")
        dialog = ConfirmationDialog(question, description, self.tr("Cancel the series"), self.tr("Keep"), self._page)
        which = QComboBox(dialog)
        which.addItem(self.tr("All that have not begun"), None)
        which.addItem(self.tr("This and following bookings"), booking.start)
        which.setAccessibleName(self.tr("Applies to"))
        dialog.rows.addWidget(which)
        dialog.accepted.connect(lambda: self.commands.cancel_series(booking, which.currentData()))
        self._open(dialog)

    def usage_report(self) -> None:
        from torchyard_gui.bookings.dialogs.usage_dialog import UsageDialog

        self._open(UsageDialog(self.model, self._page))

    def export(self) -> None:
        from torchyard_gui.bookings.dialogs.ics_import_export import export_bookings

        export_bookings(self.model, self._page, self.succeeded.emit, self.failed.emit)

    def import_bookings(self, path: Path | None = None) -> None:
        from torchyard_gui.bookings.dialogs.ics_import_export import ImportDialog, choose_file

        path = path or choose_file(self._page)
        if path is not None:
            dialog = ImportDialog(self.model, path, self._page)
            dialog.imported.connect(self.commands.booked)
            self._open(dialog)

    def rules(self) -> None:
        from torchyard_gui.bookings.dialogs.rules_dialog import RulesDialog

        self._open(RulesDialog(self.model, self._page))

    def team_calendar(self) -> None:
        """Opens the dialog to join, create or leave the team's calendar."""
        from torchyard_gui.bookings.dialogs.team_calendar_dialog import TeamCalendarDialog

        dialog = TeamCalendarDialog(self.model, self._page)
        dialog.changed.connect(self._calendar_changed)
        self._open(dialog)

    def _calendar_changed(self, text: str) -> None:
        self.commands.forget()
        self.model.reopen()
        self.succeeded.emit(text)

    def close(self) -> None:
        if self.current is not None:
            self.current.close()

    def _open(self, dialog: QDialog) -> None:
        self.close()
        self.current = dialog
        if isinstance(dialog, BookingDialog):
            dialog.booked.connect(self.commands.booked)
            dialog.changed.connect(self.commands.changed)
            dialog.series_changed.connect(self.commands.series_changed)
        dialog.finished.connect(self._dialog_closed)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _dialog_closed(self) -> None:
        self.current = None
        self.closed.emit()
