"""The drawer to find a slot: a form, and the first five matches, one of which is always selected.

Clicks and arrow keys only select a match. The button and Enter book the selected match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QComboBox, QFrame, QLineEdit, QWidget

from torchyard_core.booking import time_parser
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Slot
from torchyard_core.booking.search.slot_search import Fit, Wish
from torchyard_core.booking.slots import format_slots
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.lanes import gpu_model
from torchyard_gui.bookings.drawers.drawer import Drawer
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Card, Divider, FormRow, label, remove_widgets
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.input_fields import NumberField
from torchyard_gui.widgets.layouts import fill, hbox, vbox
from torchyard_gui.widgets.screen_reader import announce

SOON_MS = 250
NAMES = 112
EARLIER = timedelta(minutes=1)
"""A slot counts as earlier than another one only if it starts at least this much earlier."""
SAME_WITHIN = timedelta(minutes=15)


class FindSlotDrawer(Drawer):
    """A form and the list of matches. Enter books the selected match.

    When the user changes the requirements, `wished` is emitted with the Wish, and the receiver must call `show_fits` or
    `show_problem_text`. `book_wanted` is emitted with the index of the match to book.
    """

    wished = Signal(object)
    book_wanted = Signal(int)
    chosen_changed = Signal(int)
    """Emitted with the index of the match that the user selected."""
    wait_wanted = Signal(object)
    """Emitted with the Wish to put on the waitlist."""

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
        self.count_row = FormRow(self.tr("GPUs"), self.count, name_width=NAMES)
        self.gpu_rows = (
            FormRow(self.tr("Memory, at least"), self.memory, name_width=NAMES),
            FormRow(self.tr("Model"), self.model, name_width=NAMES),
        )
        fill(
            self.body,
            self.count_row,
            *self.gpu_rows,
            self.length_row,
            self.from_row,
            FormRow(self.tr("On"), self.on, name_width=NAMES),
            FormRow(self.tr("Title"), self.title_, name_width=NAMES),
            Divider(),
        )
        self.cards: list[FitCard] = []
        self.chosen = 0
        """The index of the selected match."""
        self.summary = label(role="small", ink="2", wrap=True)
        self._cards_at = self.body.count()
        fill(self.body, self.summary, None)
        self.book = push_button(self.tr("Book"), lambda: self._book(), "primary", self.tr("Book the slot (Enter)"))
        self.wait = push_button(self.tr("Join the waitlist"), self._wait)
        self.begins = label(role="small", ink="2", wrap=True)
        self._wait_until: datetime | None = None
        """A booking from the waitlist must end by this time to begin earlier than the first match. None if there is no
        match.
        """
        buttons = hbox((self.book, 1), (self.wait, 1), spacing=8)
        self.footer = QFrame()
        self.footer.setProperty("panel", "bottom")
        vbox(self.begins, buttons, parent=self.footer, margins=(14, 8, 14, 10), spacing=6)
        fill(self.column, self.footer)
        self._show_chosen()
        self._soon = QTimer(self, singleShot=True, interval=SOON_MS)
        self._soon.timeout.connect(self.search)
        self._is_stale = True
        self._announced = ""
        self.on.currentIndexChanged.connect(self._show_kind)
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

    def offer_clusters(self, clusters: Sequence[str], *, has_gpus: bool) -> None:
        """Sets the clusters to choose from. If no host has GPUs, a cluster is selected."""
        wanted = [self.tr("one host"), self.tr("several hosts")]
        wanted += [self.tr("nodes of {cluster}").format(cluster=name) for name in clusters]
        if [self.on.itemText(number) for number in range(self.on.count())] == wanted:
            return
        before = self.on.currentText()
        self.on.blockSignals(True)
        self.on.clear()
        for text, data in zip(wanted, (True, False, *clusters), strict=True):
            self.on.addItem(text, data)
        first = 0 if has_gpus or not clusters else 2
        self.on.setCurrentIndex(max(self.on.findText(before), first))
        self.on.blockSignals(False)
        self._show_kind()

    @property
    def cluster(self) -> str:
        """The cluster whose nodes are to be found, or "" for GPUs of hosts."""
        chosen = self.on.currentData()
        return chosen if isinstance(chosen, str) else ""

    def _show_kind(self) -> None:
        """Shows the fields for GPUs of hosts or, if a cluster is chosen, the fields for nodes."""
        name = self.tr("Nodes") if self.cluster else self.tr("GPUs")
        self.count_row.name.setText(name)
        self.count.setAccessibleName(name)
        for row in self.gpu_rows:
            row.setVisible(not self.cluster)

    def wish(self) -> Wish | None:
        """Returns the requirements in the form, or shows the problems beside the fields and returns None."""
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
        if self.cluster:
            return Wish(self.count.value(), length, max(earliest, self.now()), hosts=(self.cluster,))
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
        """Requests matches for the current form, unless the form is invalid."""
        self._soon.stop()
        wish = self.wish()
        if wish is not None:
            self._is_stale = False
            self.summary.setText(self.tr("Searching …"))
            self.wished.emit(wish)

    def show_fits(
        self, fits: Sequence[Fit], unbooked: Sequence[Fit], slots: Sequence[Slot], now: datetime, at_most: str
    ) -> None:
        """Shows the matches of a search.

        The match that was selected before stays selected if it is found again; otherwise, the first match is selected.

        Args:
            unbooked: The first match of a search that treats GPUs in use without a booking as free, as the waitlist
                does. Empty if there is no match.
            at_most: A sentence about the GPUs that are free now.
        """
        chosen = _same_fit(self.cards[self.chosen].fit, fits) if self.cards else 0
        # Cards are reused, so a repeated search replaces nothing under the pointer.
        self._drop_cards(keep=len(fits))
        for number in range(len(self.cards), len(fits)):
            card = FitCard(number)
            card.pressed.connect(self.chosen_changed)
            card.installEventFilter(self)
            self.body.insertWidget(self._cards_at + number, card)
            self.cards.append(card)
        for card, fit in zip(self.cards, fits, strict=True):
            card.show_fit(fit, slots, self.zone, now)
        self.summary.setText(
            at_most if fits else self.tr("Nothing fits in the next 90 days. {now}").format(now=at_most)
        )
        self._offer_waitlist(fits, unbooked, now)
        self.choose(chosen)
        self._announce()

    def choose(self, number: int) -> None:
        """Selects a match without booking it."""
        self.chosen = number
        self._show_chosen()

    def show_problem_text(self, text: str) -> None:
        self._drop_cards()
        self.summary.setText(text)
        self.wait.setEnabled(False)
        self.wait.setToolTip(self.tr("This request can never be met."))
        self._show_chosen()
        self._announce()

    def _offer_waitlist(self, fits: Sequence[Fit], unbooked: Sequence[Fit], now: datetime) -> None:
        """Enables or disables the button for the waitlist, and sets its tool tip.

        The button is disabled if the first match begins at the requested time, because there is nothing to wait for.
        """
        first = unbooked[0] if unbooked else None
        self._wait_until = first.end - EARLIER if first is not None else None
        wish = self.wish()
        can_wait = wish is not None and not wish.hosts and (first is None or first.start >= wish.earliest + EARLIER)
        self.wait.setEnabled(can_wait)
        if self.cluster:
            tip = self.tr("Nodes of a cluster have no waitlist here.")
        elif not can_wait and fits and first is not None and fits[0].start > first.start:
            tip = self.tr("The GPUs are not booked, only in use. The waitlist waits for bookings that are released.")
        elif not can_wait:
            tip = self.tr("These GPUs are free now: book them.")
        elif first is None:
            tip = self.tr("GPUs that are freed are booked for you, in the order of the waitlist.")
        else:
            when = labels.time_span(first.start, first.end, self.zone, now, is_inside=True)
            tip = self.tr("GPUs that are freed earlier than {when} are booked for you, in the order of the waitlist.")
            tip = tip.format(when=when)
        self.wait.setToolTip(tip)

    def _show_chosen(self) -> None:
        for card in self.cards:
            card.set_selected(card.number == self.chosen)
        self.book.setEnabled(bool(self.cards))
        if not self.cards:
            self.book.setText(self.tr("Book"))
            self.begins.hide()
            return
        fit = self.cards[self.chosen].fit
        self.book.setText(self.tr("Book slot {number}").format(number=self.chosen + 1))
        wait = (fit.start - self.now()).total_seconds()
        if wait >= 60:
            begins = self.tr("Slot {number} begins in {time}.").format(
                number=self.chosen + 1, time=labels.duration_text(wait)
            )
        else:
            begins = self.tr("Slot {number} begins now.").format(number=self.chosen + 1)
        self.begins.setText(begins)
        self.begins.show()

    def _announce(self) -> None:
        """Announces the result to screen readers if the result has changed."""
        text = self.summary.text()
        if self.cards:
            one, many = self.tr("1 slot found"), self.tr("{count} slots found").format(count=len(self.cards))
            text = self.tr("{found}. Selected: {slot}. Enter books it, arrows select another.").format(
                found=one if len(self.cards) == 1 else many, slot=self.cards[self.chosen].accessibleName()
            )
        if text != self._announced:
            self._announced = text
            announce(self, text)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() != QEvent.Type.KeyPress or not isinstance(event, QKeyEvent):
            return False
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._book()
            return True
        by = (event.key() == Qt.Key.Key_Down) - (event.key() == Qt.Key.Key_Up)
        # Number fields and lists handle the arrow keys themselves.
        if by and isinstance(watched, QLineEdit | FitCard) and self.cards:
            self._step(by, focus=isinstance(watched, FitCard))
            return True
        return False

    def _step(self, by: int, *, focus: bool) -> None:
        number = min(max(self.chosen + by, 0), len(self.cards) - 1)
        self.chosen_changed.emit(number)
        if focus:
            self.cards[number].setFocus(Qt.FocusReason.TabFocusReason)
        announce(self, self.cards[number].accessibleName())

    def _book(self) -> None:
        """Requests to book the selected match. If there is none, or if the form has changed since the last search,
        searches instead.
        """
        if self._is_stale or not self.cards:
            self.search()
        else:
            self.book_wanted.emit(self.chosen)

    def _changed(self) -> None:
        self._is_stale = True
        self._soon.start()

    def _wait(self) -> None:
        if (wish := self.wish()) is not None:
            self.wait_wanted.emit(replace(wish, latest=self._wait_until))

    def _drop_cards(self, keep: int = 0) -> None:
        """Deletes all cards except the first `keep`. The focus of a deleted card moves to the last remaining one."""
        dropped = self.cards[keep:]
        self.cards, self.chosen = self.cards[:keep], 0
        if any(card.hasFocus() for card in dropped):
            (self.cards[-1] if self.cards else self.count).setFocus()
        remove_widgets(self.body, dropped)


def _same_fit(before: Fit, fits: Sequence[Fit]) -> int:
    """Returns the index of the match that equals the previously selected match, or 0 if there is none.

    Equal matches may have slightly different starts, because "now" is later each time the search is repeated.
    """
    same = (
        number
        for number, fit in enumerate(fits)
        if fit.gpus == before.gpus and abs(fit.start - before.start) < SAME_WITHIN
    )
    return next(same, 0)


class FitCard(Card):
    """Card of a match, with the number that the match has in the calendar. A click or Space selects the match."""

    pressed = Signal(int)

    def __init__(self, number: int):
        super().__init__()
        self.number = number
        self.fit: Fit
        self._when = label(role="strong", wrap=True)
        self._where = label(role="small", ink="2", wrap=True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.body.setSpacing(3)
        self.body.addLayout(hbox(_Number(number + 1), (self._when, 1), spacing=8))
        self.body.addWidget(self._where)

    def show_fit(self, fit: Fit, slots: Sequence[Slot], zone: str, now: datetime) -> None:
        self.fit = fit
        when = labels.time_span(fit.start, fit.end, zone, now)
        models = sorted({gpu_model(slot) for slot in slots if slot.id in fit.gpus})
        where = " · ".join(filter(None, [format_slots(fit.gpus, slots), ", ".join(filter(None, models))]))
        self._when.setText(when)
        self._where.setText(where)
        self.setAccessibleName(f"{self.number + 1}: {when}, {where}")
        self.setToolTip(f"{fit.start:%Y-%m-%d %H:%M} – {fit.end:%Y-%m-%d %H:%M} UTC")

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.pressed.emit(self.number)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Space:
            self.pressed.emit(self.number)
        else:
            super().keyPressEvent(event)


class _Number(QWidget):
    """The number of a match in a disc, drawn as in the calendar."""

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
