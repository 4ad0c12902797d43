"""Import and export of iCalendar files. An import is previewed before any event is booked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QFileDialog,
    QHeaderView,
    QLineEdit,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from torchyard_core.app.book_gpus import BookGpus
from torchyard_core.atomic_write import write_atomically
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.theme.icons import state_icon
from torchyard_gui.widgets import FormRow, label
from torchyard_gui.widgets.dialogs import DialogButtons, dialog_layout

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore, ImportVerdict

AHEAD = timedelta(days=365)
FILTER = "iCalendar (*.ics)"
_STATES = {"new": "passed", "there": "done", "clash": "failed", "refused": "warning"}


def choose_file(parent: QWidget) -> Path | None:
    """Asks the user for the file to import. Returns None if the user cancels."""
    chosen, _ = QFileDialog.getOpenFileName(parent, labels.translate("Bookings", "Import bookings"), "", FILTER)
    return Path(chosen) if chosen else None


def export_bookings(
    model: BookingsModel,
    parent: QWidget,
    succeeded: Callable[[str], None],
    failed: Callable[[TorchyardError], None],
    path: Path | None = None,
) -> None:
    """Writes all bookings of the user to a file. Without `path`, a file dialog asks for the file."""
    if path is None:
        title = labels.translate("Bookings", "Export your bookings")
        chosen, _ = QFileDialog.getSaveFileName(parent, title, "bookings.ics", FILTER)
        if not chosen:
            return
        path = Path(chosen)
    target = path

    def export(store: BookingStore) -> int:
        from torchyard_core.booking.ics import EVER, export_ics

        mine = store.bookings(*EVER, owner=store.person)
        write_atomically(target, export_ics(mine, store.slots()))
        return len(mine)

    def done(count: int) -> None:
        one = labels.translate("Bookings", "1 booking written to {path}")
        text = one if count == 1 else labels.translate("Bookings", "{count} bookings written to {path}")
        succeeded(text.format(count=count, path=target.name))

    model.ask(export, done, failed, parent)


class ImportDialog(QDialog):
    """Dialog that previews an import and books the new events. Emits `imported` with the new bookings."""

    imported = Signal(tuple)

    def __init__(self, model: BookingsModel, path: Path, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.path = path
        self.previewed: tuple[ImportVerdict, ...] = ()
        self.setWindowTitle(self.tr("Import {name}").format(name=path.name))
        self.resize(720, 440)
        self.gpus = QLineEdit(placeholderText=self.tr("for events without GPUs: gpu-b:0"))
        self.row = FormRow(self.tr("GPUs"), self.gpus)
        self.gpus.editingFinished.connect(self.preview)
        self.table = QTableWidget(0, 4)
        self.table.setAccessibleName(self.tr("Preview of the events"))
        self.table.setHorizontalHeaderLabels([self.tr("Title"), self.tr("When"), self.tr("GPUs"), self.tr("Becomes")])
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.verticalHeader().hide()
        header = self.table.horizontalHeader()
        for column, width in enumerate((140, 190, 110)):
            self.table.setColumnWidth(column, width)
        header.setSectionResizeMode(3, QHeaderView.ResizeMode.Stretch)
        self.summary = label(ink="2", wrap=True)
        buttons = DialogButtons(self, self.tr("Import"))
        self.ok = buttons.agree
        self.ok.setEnabled(False)
        dialog_layout(self, self.row, self.table, self.summary, buttons)
        self.preview()

    def preview(self) -> None:
        """Reads the file and asks the store which events could be booked, without changing the calendar."""
        seen, now, path = self.model.seen, self.model.now, self.path
        try:
            text = self.gpus.text().strip()
            gpus = tuple(slot.id for slot in parse_slots(text, seen.slots)) if text else ()
            self.row.set_problem("")
        except Refused as refused:
            self.row.set_problem(labels.error_text(refused))
            return

        def look(store: BookingStore) -> tuple[tuple[ImportVerdict, ...], tuple[str, ...]]:
            from torchyard_core.booking.ics import read_ics

            try:
                content = path.read_bytes()
            except OSError as error:
                raise TorchyardError(f"{path.name} cannot be read: {error.strerror}", code="unreadable") from None
            found = read_ics(content, zone=seen.zone, since=now, until=now + AHEAD, slots=store.slots(), gpus=gpus)
            return store.preview(found.drafts), found.remarks

        self.summary.setText(self.tr("Reading …"))
        self.model.ask(look, self._show, self._failed, self)

    def accept(self) -> None:
        """Books the new events and reports the events that can no longer be booked."""
        drafts = [one.draft for one in self.previewed if one.verdict == "new"]
        self.ok.setEnabled(False)

        def book(store: BookingStore) -> tuple[list[Booking], list[str]]:
            made, refused = BookGpus(store).book_each(drafts)
            return made, [f"{draft.title}: {error.message}" for draft, error in refused]

        self.model.act(book, self._booked, self._failed, self)

    def _booked(self, result: tuple[list[Booking], list[str]]) -> None:
        made, missed = result
        if made:
            self.imported.emit(tuple(made))
        if missed:
            self.summary.setText("\n".join([self.tr("Not booked:"), *missed[:6]]))
            self.preview()
        else:
            super().accept()

    def _show(self, found: tuple[tuple[ImportVerdict, ...], Sequence[str]]) -> None:
        self.previewed, remarks = found
        seen, now = self.model.seen, self.model.now
        texts = {
            "new": self.tr("a new booking"),
            "there": self.tr("already booked"),
            "clash": self.tr("not booked"),
            "refused": self.tr("not booked"),
        }
        self.table.setRowCount(len(self.previewed))
        for number, one in enumerate(self.previewed):
            draft: Any = one.draft
            becomes = texts[one.verdict] + (f": {one.why.message}" if one.why is not None else "")
            cells = (
                draft.title,
                labels.time_span(draft.start, draft.end, seen.zone, now),
                format_slots(draft.gpus, seen.slots),
                becomes,
            )
            for column, text in enumerate(cells):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                if column == 3:
                    item.setIcon(state_icon(_STATES[one.verdict]))
                item.setFlags(item.flags() & ~Qt.ItemFlag.ItemIsEditable)
                self.table.setItem(number, column, item)
        new = sum(one.verdict == "new" for one in self.previewed)
        self.ok.setEnabled(bool(new))
        self.ok.setText(self.tr("Import {count}").format(count=new) if new else self.tr("Import"))
        lines = [] if self.previewed else [self.tr("The file has no future events.")]
        lines += remarks[:6]
        if len(remarks) > 6:
            lines.append(self.tr("and {count} more").format(count=len(remarks) - 6))
        self.summary.setText("\n".join(lines))

    def _failed(self, error: TorchyardError) -> None:
        self.ok.setEnabled(False)
        self.summary.setText(labels.error_text(error))
