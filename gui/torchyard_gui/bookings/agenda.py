"""The agenda: a table of the bookings on the shown days, which screen readers can read row by row."""

from __future__ import annotations

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QFocusEvent
from PySide6.QtWidgets import QHeaderView, QTableView, QWidget

from torchyard_core.booking.model import Booking
from torchyard_core.booking.slots import format_slots
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.blocks import is_shown
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bridge.bookings_model import CalendarState
from torchyard_gui.widgets.containers import prepare_rows
from torchyard_gui.widgets.empty_state import EmptyListMessage

Index = QModelIndex | QPersistentModelIndex


class Agenda(QTableView):
    """Table of bookings. Selecting a row emits `chosen`, and Enter or a double click emits `activated_`, each with the
    booking's ID.
    """

    chosen = Signal(str)
    activated_ = Signal(str)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.rows_ = _Rows(self)
        self._is_chosen_by_user = True
        """False while the program changes the current row. Such a change must not open the booking's details."""
        self.setModel(self.rows_)
        prepare_rows(self, self.tr("Agenda"))
        self.setWordWrap(False)
        header = self.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for column, width in enumerate((252, 190, 96, 166, 90, 120)):
            self.setColumnWidth(column, width)
        self.nothing = EmptyListMessage(self, lambda: self.tr("No bookings on these days."))
        self.selectionModel().currentRowChanged.connect(self._moved)
        self.activated.connect(lambda index: self.activated_.emit(self.rows_.id_at(index.row())))

    def show_bookings(
        self, seen: CalendarState, picture: DisplayList, since: float, until: float, chosen: str = ""
    ) -> None:
        """Fills the table with the bookings on the shown days that match the filter, sorted by start.

        Args:
            chosen: ID of the booking to select if there is no current row.
        """
        lanes = {slot.id for row in picture.lanes.rows for slot in row.slots}
        shown = [
            booking
            for booking in seen.bookings
            if is_shown(booking)
            and booking.id not in picture.dimmed
            and booking.start.timestamp() < until
            and booking.until.timestamp() > since
            and lanes.intersection(booking.gpus)
        ]
        shown.sort(key=lambda booking: (booking.start, booking.until, booking.id))
        current = self.rows_.id_at(self.currentIndex().row())
        self._is_chosen_by_user = False
        self.rows_.take(shown, seen, picture)
        number = self.rows_.row_of(current or chosen)
        if number >= 0:
            self.selectRow(number)
        self._is_chosen_by_user = True

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._is_chosen_by_user = False
        super().focusInEvent(event)  # Without a current row, Qt makes the first row current, unasked by the user.
        self._is_chosen_by_user = True

    def _moved(self, current: QModelIndex, before: QModelIndex) -> None:
        if self._is_chosen_by_user:
            self.chosen.emit(self.rows_.id_at(current.row()))


class _Rows(QAbstractTableModel):
    def __init__(self, parent: Agenda):
        super().__init__(parent)
        self._bookings: list[Booking] = []
        self._texts: list[tuple[str, ...]] = []
        tr = self.tr
        self._heads = tr("When"), tr("Title"), tr("Person"), tr("GPUs"), tr("Length"), tr("State")

    def take(self, bookings: list[Booking], seen: CalendarState, picture: DisplayList) -> None:
        now = picture.now
        self.beginResetModel()
        has_nodes = any(slot.node for slot in seen.slots)
        gpus = self.tr("GPUs and nodes") if has_nodes else self.tr("GPUs")
        self._heads = (*self._heads[:3], gpus, *self._heads[4:])
        self._bookings = bookings
        self._texts = [
            (
                labels.time_span(one.start, one.until, seen.zone, now or one.start),
                one.title,
                labels.owner_name(one.owner, seen.person),
                format_slots(one.gpus, seen.slots),
                labels.duration_text(one.duration.total_seconds()),
                picture.notes.get(one.id) or labels.state_text(one, now or one.start),
            )
            for one in bookings
        ]
        self.endResetModel()

    def id_at(self, row: int) -> str:
        return self._bookings[row].id if 0 <= row < len(self._bookings) else ""

    def row_of(self, booking_id: str) -> int:
        return next((row for row, one in enumerate(self._bookings) if one.id == booking_id), -1)

    def rowCount(self, parent: Index | None = None) -> int:
        return len(self._bookings) if parent is None or not parent.isValid() else 0

    def columnCount(self, parent: Index | None = None) -> int:
        return len(self._heads)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        if not index.isValid():
            return None
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return self._texts[index.row()][index.column()]
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{self._heads[index.column()]}: {self._texts[index.row()][index.column()]}"
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        if role == Qt.ItemDataRole.DisplayRole and orientation == Qt.Orientation.Horizontal:
            return self._heads[section]
        return None
