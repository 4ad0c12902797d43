"""The usage report: GPU-hours that were booked, used and idle, by user, host or week, as bars, a table and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QFileDialog,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from torchyard_core.atomic_write import write_atomically
from torchyard_core.booking.usage_report import By, UsageRow, to_csv
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Segmented, label, scroll_area
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import dialog_layout
from torchyard_gui.widgets.elided_text import draw_elided
from torchyard_gui.widgets.layouts import hbox

SIZE = QSize(720, 560)
BAR = 30
NAME = 120
FIGURES = 150


class UsageDialog(QDialog):
    """Dialog with the usage report. When the user changes the grouping or the period, the store is queried again."""

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.setWindowTitle(self.tr("Usage report"))
        self.resize(SIZE)
        self.rows_: tuple[UsageRow, ...] = ()
        self.by = Segmented(
            [("person", self.tr("By person")), ("host", self.tr("By host")), ("week", self.tr("By week"))]
        )
        self.days = Segmented([("7", self.tr("7 days")), ("30", self.tr("30 days")), ("90", self.tr("90 days"))])
        self.days.set_value("30")
        self.bars = UsageBars()
        self.table = QTableWidget(0, 5)
        self.table.setAccessibleName(self.tr("Usage in numbers"))
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.verticalHeader().hide()
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.summary = label(ink="2", wrap=True)
        self.save = push_button(self.tr("Save as CSV …"), lambda: self.save_csv())
        self._lay_out()
        self.by.changed.connect(self.ask)
        self.days.changed.connect(self.ask)
        self.ask()

    def ask(self) -> None:
        """Loads the report for the selected grouping and period."""
        until = self.model.now
        since = until - timedelta(days=int(self.days.value))
        by = cast("By", self.by.value)
        zone = self.model.seen.zone
        self.summary.setText(self.tr("Loading …"))
        self.model.ask(lambda store: store.usage(since, until, by, zone), self._show, self._failed, self)

    def save_csv(self, path: Path | None = None) -> None:
        """Saves the table as CSV. Without `path`, a file dialog asks for the file."""
        if path is None:
            name = f"gpu-hours-by-{self.by.value}.csv"
            chosen, _ = QFileDialog.getSaveFileName(self, self.save.text(), name, "CSV (*.csv)")
            if not chosen:
                return
            path = Path(chosen)
        by = cast("By", self.by.value)
        try:
            write_atomically(path, to_csv(self.rows_, by))
            self.summary.setText(self.tr("Saved as {path}").format(path=path))
        except TorchyardError as error:
            self.summary.setText(labels.error_text(error))

    def _show(self, rows: tuple[UsageRow, ...]) -> None:
        self.rows_ = rows
        booked, used = sum(row.booked_h for row in rows), sum(row.used_h for row in rows)
        self.summary.setText(
            self.tr("{booked} GPU-hours booked, {used} used.").format(booked=f"{booked:,.1f}", used=f"{used:,.1f}")
            if rows
            else self.tr("Nothing was booked or used in that time.")
        )
        self.save.setEnabled(bool(rows))
        self.bars.show_rows(rows)
        heads = {"person": self.tr("Person"), "host": self.tr("Host"), "week": self.tr("Week of")}
        hours = self.tr("Booked, h"), self.tr("Used, h"), self.tr("Idle, h"), self.tr("Not booked, h")
        self.table.setHorizontalHeaderLabels([heads[self.by.value], *hours])
        for column in range(self.table.columnCount()):
            side = Qt.AlignmentFlag.AlignRight if column else Qt.AlignmentFlag.AlignLeft
            head = self.table.horizontalHeaderItem(column)
            assert head is not None  # setHorizontalHeaderLabels() has created the item.
            head.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
        self.table.setRowCount(len(rows))
        for number, row in enumerate(rows):
            cells = [row.key, *(f"{value:,.1f}" for value in (row.booked_h, row.used_h, row.idle_h, row.unbooked_h))]
            for column, text in enumerate(cells):
                item = QTableWidgetItem(text)
                if column:
                    item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                self.table.setItem(number, column, item)

    def _failed(self, error: TorchyardError) -> None:
        self.rows_ = ()
        self.bars.show_rows(())
        self.save.setEnabled(False)
        self.summary.setText(labels.error_text(error))

    def _lay_out(self) -> None:
        choice = hbox(self.by, None, self.days)
        scroll = scroll_area(self.bars)
        foot = hbox((self.summary, 1), self.save, push_button(self.tr("Close"), self.reject))
        dialog_layout(self, choice, (scroll, 3), (self.table, 2), foot, spacing=12)


class UsageBars(QWidget):
    """Bar chart with one bar for each row of the report.

    The outline of a bar shows the booked hours, its hatched part the idle hours, and its filled part the other booked
    hours. An amber outline to the right of the bar shows the hours used without a booking.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._rows: Sequence[UsageRow] = ()
        theme().changed.connect(self.update)

    def show_rows(self, rows: Sequence[UsageRow]) -> None:
        self._rows = rows
        self.setMinimumHeight(BAR * max(len(rows), 1))
        self.setAccessibleName(
            "; ".join(
                self.tr("{name}: {booked} h booked, {used} h used, {idle} h idle").format(
                    name=row.key, booked=f"{row.booked_h:.1f}", used=f"{row.used_h:.1f}", idle=f"{row.idle_h:.1f}"
                )
                for row in rows
            )
            or self.tr("Nothing to draw")
        )
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        look = theme()
        painter = QPainter(self)
        longest = max((row.booked_h + row.unbooked_h for row in self._rows), default=0.0)
        room = self.width() - NAME - FIGURES
        for number, row in enumerate(self._rows):
            top = number * BAR
            draw_elided(painter, QRect(0, top, NAME - 10, BAR), row.key, "small_strong", "text")
            scale = room / longest if longest else 0.0
            booked, unbooked = row.booked_h * scale, row.unbooked_h * scale
            idle = min(row.idle_h, row.booked_h) * scale
            box = QRectF(NAME, top + 7, max(booked, 1.0), BAR - 14)
            painter.fillRect(QRectF(NAME, box.top(), booked - idle, box.height()), look.color("meter"))
            hatch = QRectF(NAME + booked - idle, box.top(), idle, box.height())
            painter.fillRect(hatch, QBrush(look.color("wait", 0.55), Qt.BrushStyle.BDiagPattern))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(look.pen("line"))
            painter.drawRect(box)
            if unbooked >= 1:
                painter.setPen(look.pen("wait"))
                painter.drawRect(QRectF(box.right() + 2, box.top(), unbooked - 2, box.height()))
            painter.setFont(look.font("small"))
            painter.setPen(look.pen("text2"))
            text = _row_text(row)
            left = NAME + booked + unbooked + 8
            middle = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRectF(left, top, self.width() - left, BAR), middle, text)


def _row_text(row: UsageRow) -> str:
    """Returns the text beside a bar: the hours booked, idle, and used without a booking."""
    booked = labels.translate("Bookings", "{booked} h, {idle} h idle")
    parts = [booked.format(booked=f"{row.booked_h:,.0f}", idle=f"{row.idle_h:,.0f}")] if row.booked_h else []
    if row.unbooked_h >= 0.5:
        unbooked = labels.translate("Bookings", "{unbooked} h used without a booking")
        parts.append(unbooked.format(unbooked=f"{row.unbooked_h:,.0f}"))
    return ", ".join(parts)
