"""The drawer of the waitlist, which lists the entries in order and has buttons to join and leave the waitlist."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton, QWidget

from torchyard_core.booking.waitlist import Waiting
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.drawers.drawer import Drawer
from torchyard_gui.widgets import Card, label, remove_widgets
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.layouts import fill


class WaitlistDrawer(Drawer):
    """Shows the waitlist.

    `leave_wanted` is emitted with the ID of the entry to remove, and `join_wanted` when the form to find a slot should
    open.
    """

    leave_wanted = Signal(str)
    join_wanted = Signal()

    def __init__(self, parent: QWidget | None = None):
        super().__init__(self.tr("Waitlist"), parent)
        self.summary = label(ink="2", wrap=True)
        tip = self.tr("Enter what you need. If no slot begins soon enough, join the waitlist")
        self.join = push_button(self.tr("Join the waitlist …"), self.join_wanted, tip=tip)
        self.cards: list[Card] = []
        self.leave_buttons: list[QPushButton] = []
        fill(self.body, self.summary, self.join, None)
        self.show_waiting((), "", False, "UTC", None)

    def show_waiting(
        self, waiting: Sequence[Waiting], me: str, is_admin: bool, zone: str, now: datetime | None
    ) -> None:
        """Lists the entries, numbered in the given order."""
        remove_widgets(self.body, self.cards)
        self.cards, self.leave_buttons = [], []
        self.summary.setText(
            self.tr("GPUs that are freed are booked for the first waiting request that they fit.")
            if waiting
            else self.tr("The waitlist is empty. Every user can book GPUs that become free.")
        )
        for number, one in enumerate(waiting):
            card = self._card(number, one, me, is_admin, zone, now or one.created)
            self.body.insertWidget(1 + number, card)
            self.cards.append(card)

    def _card(self, number: int, one: Waiting, me: str, is_admin: bool, zone: str, now: datetime) -> Card:
        card = Card()
        card.body.setSpacing(3)
        wish = one.wish
        what = [labels.slots_count(wish.gpus or ["GPU"] * wish.count)]
        if wish.min_memory_gb:
            what.append(f"≥ {wish.min_memory_gb:g} GB")
        if wish.model:
            what.append(wish.model)
        what.append(labels.duration_text(wish.length.total_seconds()))
        what.append(self.tr("one host") if wish.one_host else self.tr("any hosts"))
        if wish.latest is not None:
            what.append(self.tr("until {when}").format(when=labels.moment_text(wish.latest, zone, now, is_inside=True)))
        card.body.addWidget(label(f"{number + 1}. {one.title}", role="strong", wrap=True))
        card.body.addWidget(label(" · ".join(what), role="small", ink="2", wrap=True))
        since = labels.moment_text(one.created, zone, now, is_inside=True)
        who = self.tr("{person}, since {when}").format(person=labels.owner_name(one.owner, me), when=since)
        card.body.addWidget(label(who, role="small", ink="3", wrap=True))
        if one.owner == me or is_admin:
            leave = push_button(self.tr("Leave the waitlist"), lambda: self.leave_wanted.emit(one.id), "quiet")
            card.body.addWidget(leave)
            self.leave_buttons.append(leave)
        return card
