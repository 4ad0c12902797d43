"""Tells screen readers what has just happened, as words that need no look: at most one every few seconds."""

from __future__ import annotations

from PySide6.QtCore import QElapsedTimer, QTimer
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent
from PySide6.QtWidgets import QWidget

EVERY_MS = 2500
"""Who listens needs time for a sentence. Of what comes meanwhile, the newest is told then."""

send = QAccessible.updateAccessibility


class Announcer:
    """For one widget, which must be shown for anybody to listen."""

    def __init__(self, widget: QWidget):
        self._widget = widget
        self._since = QElapsedTimer()
        self._next: tuple[str, bool] | None = None
        self._timer = QTimer(widget)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._tell_next)

    def say(self, text: str, *, urgent: bool = False) -> None:
        """`urgent` breaks into what is being read: something was refused, or is away."""
        if not text:
            return
        waited = self._since.elapsed() if self._since.isValid() else EVERY_MS
        if waited >= EVERY_MS:
            self._tell(text, urgent)
            return
        if self._next is None or urgent or not self._next[1]:
            self._next = text, urgent
        if not self._timer.isActive():
            self._timer.start(EVERY_MS - int(waited))

    def _tell_next(self) -> None:
        if self._next is not None:
            (text, urgent), self._next = self._next, None
            self._tell(text, urgent)

    def _tell(self, text: str, urgent: bool) -> None:
        self._since.start()
        event = QAccessibleAnnouncementEvent(self._widget, text)
        politeness = QAccessible.AnnouncementPoliteness
        event.setPoliteness(politeness.Assertive if urgent else politeness.Polite)
        send(event)
