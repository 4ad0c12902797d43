"""Drawer to find a slot: a form, and the first five matches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QComboBox, QLineEdit, QWidget

from torchyard_core.booking import time_parser
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Slot
from torchyard_core.booking.search.slot_search import Fit, Wish
from torchyard_core.booking.slots import format_slots
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.lanes import short_model
from torchyard_gui.bookings.drawers.drawer import Drawer
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Card, Divider, FormRow, label, remove_widgets
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.input_fields import NumberField
from torchyard_gui.widgets.layouts import fill, hbox
from torchyard_gui.widgets.screen_reader import announce

SOON_MS = 250
NAMES = 112


class FindSlotDrawer(Drawer):
    """Form and list of matches. Enter books the first match.

    Each change of the form emits `wished`, which the receiver answers by `show_fits`. `book_wanted` carries the number
    of the match to book.
    """

    wished = Signal(object)
    book_wanted = Signal(int)
    pointed = Signal(int)
    """The number of a fit to show in the calendar."""
    wait_wanted = Signal(object)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(self.tr("Find a slot"), parent)
        self.zone = "UTC"
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.count = NumberField()
        self.count.setRange(1, 4096)
        self.count.setValue(1)
        self.memory = QComboBox()
        for size in (0, 16, 24, 40, 48, 80):
            self.memory.addItem(self.tr("any") if not size else f"{size} GB", size)
        self.length = QLineEdit("4h")
        self.from_ = QLineEdit("now")
        self.on = QComboBox()
        self.on.addItem(self.tr("one host"), True)
        self.on.addItem(self.tr("several hosts"), False)
        self.model = QComboBox()
        self.title_ = QLineEdit(placeholderText=self.tr("What it is for"))
        self.length_row = FormRow(self.tr("For"), self.length, name_width=NAMES)
        self.from_row = FormRow(self.tr("From"), self.from_, name_width=NAMES)
        fill(
            self.body,
            FormRow(self.tr("GPUs"), self.count, name_width=NAMES),
            FormRow(self.tr("Memory, at least"), self.memory, name_width=NAMES),
            FormRow(self.tr("Model"), self.model, name_width=NAMES),
            self.length_row,
            self.from_row,
            FormRow(self.tr("On"), self.on, name_width=NAMES),
            FormRow(self.tr("Title"), self.title_, name_width=NAMES),
            Divider(),
        )
        self.cards: list[FitCard] = []
        self.summary = label(role="small", ink="2", wrap=True)
        tip = self.tr("Join the waitlist: freed GPUs are booked for you, in order")
        self.wait = push_button(self.tr("Tell me if one frees earlier"), self._wait, "quiet", tip)
        self._cards_at = self.body.count()
        fill(self.body, self.summary, self.wait, None)
        self._soon = QTimer(self, singleShot=True, interval=SOON_MS)
        self._soon.timeout.connect(self.search)
        self._is_stale = True
        self._announced = ""
        for field in (self.length, self.from_):
            field.textEdited.connect(self._changed)
        self.count.valueChanged.connect(self._changed)
        for box in (self.memory, self.on, self.model):
            box.currentIndexChanged.connect(self._changed)
            box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            box.setMinimumContentsLength(6)
        for widget in (self.count, self.memory, self.length, self.from_, self.on, self.model, self.title_):
            widget.installEventFilter(self)

    def offer_models(self, models: Sequence[str]) -> None:
        """Sets the GPU models to choose from."""
        wanted = [self.tr("any"), *models]
        if [self.model.itemText(number) for number in range(self.model.count())] != wanted:
            before = self.model.currentText()
            self.model.blockSignals(True)
            self.model.clear()
            self.model.addItems(wanted)
            self.model.setCurrentIndex(max(self.model.findText(before), 0))
            self.model.blockSignals(False)

    def wish(self) -> Wish | None:
        """Returns the request, or None after it has shown the problem beside the field."""
        length: timedelta | None = None
        earliest: datetime | None = None
        self.length_row.set_problem("")
        self.from_row.set_problem("")
        try:
            length = time_parser.length(self.length.text().replace(" ", ""))
        except Refused as refused:
            self.length_row.set_problem(labels.error_text(refused))
        try:
            earliest = time_parser.moment(self.from_.text(), self.zone, self.now())
        except Refused as refused:
            self.from_row.set_problem(labels.error_text(refused))
        if length is None or earliest is None:
            return None
        model = "" if self.model.currentIndex() <= 0 else self.model.currentText().rsplit(" ", 2)[0]
        return Wish(
            self.count.value(),
            length,
            max(earliest, self.now()),
            min_memory_gb=self.memory.currentData() or 0,
            model=model,
            one_host=bool(self.on.currentData()),
        )

    def search(self) -> None:
        """Requests matches for the current form."""
        self._soon.stop()
        wish = self.wish()
        if wish is not None:
            self._is_stale = False
            self.summary.setText(self.tr("Searching …"))
            self.wished.emit(wish)

    def show_fits(self, fits: Sequence[Fit], slots: Sequence[Slot], now: datetime, at_most: str) -> None:
        """Shows the matches, and the largest number of GPUs that are free now on one host."""
        self._drop_cards()
        for number, fit in enumerate(fits):
            card = FitCard(number, fit, slots, self.zone, now)
            card.book_wanted.connect(self.book_wanted)
            card.pointed.connect(self.pointed)
            self.body.insertWidget(self._cards_at + number, card)
            self.cards.append(card)
        self.summary.setText(
            at_most if fits else self.tr("Nothing fits in the next 90 days. {now}").format(now=at_most)
        )
        self.wait.setVisible(True)
        self._announce()

    def show_problem_text(self, text: str) -> None:
        self._drop_cards()
        self.summary.setText(text)
        self.wait.setVisible(False)  # No calendar can ever satisfy this request.
        self._announce()

    def _announce(self) -> None:
        """Announces the result to screen readers if the result has changed."""
        text = self.summary.text()
        if self.cards:
            text = self.tr("{count} found. The first: {fit}. Enter books it.").format(
                count=len(self.cards), fit=self.cards[0].accessibleName()
            )
        if text != self._announced:
            self._announced = text
            announce(self, text)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        enter = (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if event.type() != QEvent.Type.KeyPress or not isinstance(event, QKeyEvent) or event.key() not in enter:
            return False
        if self._is_stale or not self.cards:
            self.search()
        else:
            self.book_wanted.emit(0)
        return True

    def _changed(self) -> None:
        self._is_stale = True
        self._soon.start()

    def _wait(self) -> None:
        if (wish := self.wish()) is not None:
            self.wait_wanted.emit(wish)

    def _drop_cards(self) -> None:
        remove_widgets(self.body, self.cards)
        self.cards = []


class FitCard(Card):
    """One match with its number in the calendar. Only the first match has a button; Enter books the focused match."""

    book_wanted = Signal(int)
    pointed = Signal(int)

    def __init__(self, number: int, fit: Fit, slots: Sequence[Slot], zone: str, now: datetime):
        super().__init__()
        self.number = number
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        when = labels.time_span(fit.start, fit.end, zone, now)
        models = sorted({short_model(slot) for slot in slots if slot.id in fit.gpus})
        where = " · ".join(filter(None, [format_slots(fit.gpus, slots), ", ".join(filter(None, models))]))
        self.setAccessibleName(f"{number + 1}: {when}, {where}")
        self.setToolTip(f"{fit.start:%Y-%m-%d %H:%M} – {fit.end:%Y-%m-%d %H:%M} UTC")
        self.body.setSpacing(3)
        self.body.addLayout(hbox(_Number(number + 1), (label(when, role="strong", wrap=True), 1), spacing=8))
        self.body.addWidget(label(where, role="small", ink="2", wrap=True))
        if number == 0:
            self.set_selected(True)
            book = labels.translate("Bookings", "Book")
            self.button = push_button(book, lambda: self.book_wanted.emit(self.number), "primary")
            self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            wait = (fit.start - now).total_seconds()
            begins = (
                labels.translate("Bookings", "in {time}").format(time=labels.duration_text(wait))
                if wait >= 60
                else labels.translate("Bookings", "now")
            )
            key = label(labels.translate("Bookings", "Enter"), role="small", ink="3")
            self.body.addLayout(hbox(self.button, key, None, label(begins, role="small", ink="3")))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self.pointed.emit(self.number)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.book_wanted.emit(self.number)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.book_wanted.emit(self.number)
        elif event.key() == Qt.Key.Key_Space:
            self.pointed.emit(self.number)
        else:
            super().keyPressEvent(event)


class _Number(QWidget):
    """Number of a match in a disc, drawn as in the calendar."""

    def __init__(self, number: int):
        super().__init__()
        self._number = str(number)
        self.setFixedSize(18, 18)
        theme().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().brush("accent"))
        painter.drawEllipse(self.rect())
        painter.setPen(theme().pen("on_accent"))
        painter.setFont(theme().font("tiny"))
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self._number)
