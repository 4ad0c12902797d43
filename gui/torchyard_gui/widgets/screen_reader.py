"""Announcements to screen readers, at most one every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QElapsedTimer, QObject, Qt, QTimer
from PySide6.QtWidgets import QWidget

if TYPE_CHECKING:
    from PySide6.QtGui import QAccessibleEvent

EVERY_MS = 2500
"""Minimum interval in milliseconds between two announcements, so that the earlier one can be spoken completely. Of the
messages that arrive during this interval, one is announced at its end, and the others are discarded.
"""


def send(event: QAccessibleEvent) -> None:
    """Sends an event to the assistive technology."""
    from PySide6.QtGui import QAccessible  # This import is slow and must not delay the first paint.

    QAccessible.updateAccessibility(event)


def announce(widget: QWidget, text: str, *, urgent: bool = False) -> None:
    """Announces a message to screen readers. An urgent message, such as a refusal or failure, may interrupt speech."""
    window = widget.window()
    direct = Qt.FindChildOption.FindDirectChildrenOnly
    announcer = window.findChild(Announcer, options=direct) or Announcer(window)
    announcer.say(text, urgent=urgent)


class Announcer(QObject):
    """Sends the announcements of one window. While the window is hidden, announcements are discarded."""

    def __init__(self, window: QWidget):
        super().__init__(window)
        self._window = window
        self._since = QElapsedTimer()
        self._next: tuple[str, bool] | None = None
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._announce_next)

    def say(self, text: str, *, urgent: bool = False) -> None:
        """Announces a message immediately if possible, and otherwise later, unless a newer message replaces it in the
        meantime.

        An urgent message can be replaced only by another urgent message.
        """
        if not text:
            return
        waited = self._since.elapsed() if self._since.isValid() else EVERY_MS
        if waited >= EVERY_MS:
            self._announce(text, urgent)
            return
        if self._next is None or urgent or not self._next[1]:
            self._next = text, urgent
        if not self._timer.isActive():
            self._timer.start(EVERY_MS - int(waited))

    def _announce_next(self) -> None:
        if self._next is not None:
            (text, urgent), self._next = self._next, None
            self._announce(text, urgent)

    def _announce(self, text: str, urgent: bool) -> None:
        self._since.start()
        if not self._window.isVisible():
            return
        from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent

        event = QAccessibleAnnouncementEvent(self._window, text)
        politeness = QAccessible.AnnouncementPoliteness
        event.setPoliteness(politeness.Assertive if urgent else politeness.Polite)
        send(event)
