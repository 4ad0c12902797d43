"""Announces messages in a window, and prints what arrives on the accessibility bus.

    python -m tests.gui.widgets.accessibility_bus

`test_screen_reader` runs this program in a separate process, with a virtual display and its own bus, because Qt's
offscreen platform has no support for screen readers.
"""

from __future__ import annotations

import json

from PySide6.QtCore import SLOT, QObject, Slot
from PySide6.QtDBus import QDBusConnection, QDBusInterface, QDBusMessage
from PySide6.QtWidgets import QApplication, QWidget

from tests.waiting import wait_until
from torchyard_gui.widgets import NoticeBar, Toast, screen_reader

REGISTRY = ("org.a11y.atspi.Registry", "/org/a11y/atspi/registry", "org.a11y.atspi.Registry")
EVENTS = "org.a11y.atspi.Event.Object"
GIVE_UP_MS = 20_000


class Reader(QObject):
    """Receives announcements from the accessibility bus, as a screen reader does."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, int] = {}
        """Urgency by text: 1 is polite, 2 interrupts."""
        self._bus = QDBusConnection.connectToBus(_address(), "accessibility")
        slot = SLOT("take(QDBusMessage)")
        # According to the type stubs, this must be bytes, but PySide refuses bytes.
        self._bus.connect("", "", EVENTS, "Announcement", self, slot)  # type: ignore[call-overload]  # PySide does not accept bytes.
        register = QDBusMessage.createMethodCall(*REGISTRY, "RegisterEvent")
        register.setArguments(["object:announcement:", ["all"], ""])
        answer = self._bus.call(register)
        assert answer.type() is QDBusMessage.MessageType.ReplyMessage, answer.errorMessage()

    @Slot(QDBusMessage)
    def take(self, message: QDBusMessage) -> None:
        said = message.arguments()
        self.heard[str(said[3].variant())] = int(said[1])


def _address() -> str:
    """Waits until the launcher of the accessibility bus runs; returns the address of the bus."""
    found: list[str] = []

    def ask() -> bool:
        answer = QDBusInterface("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus").call("GetAddress")
        found.extend(map(str, answer.arguments() if not answer.errorName() else ()))
        return bool(found)

    wait_until(ask, GIVE_UP_MS / 1000, pause=lambda _: QApplication.processEvents())
    return found[0]


def main() -> None:
    app = QApplication([])
    screen_reader.EVERY_MS = 0
    reader = Reader()
    window = QWidget()
    bar, toast = NoticeBar(window), Toast(window)
    window.show()

    def heard() -> bool:
        """Repeats the announcement until it is received, because Qt notices a listener only after a delay."""
        bar.clear()
        bar.show_notice("fail", "The run failed: out of memory")
        toast.say("Booked: gpu-b:0-1")
        QApplication.processEvents()
        return len(reader.heard) >= 2

    wait_until(heard, GIVE_UP_MS / 1000, pause=lambda _: QApplication.processEvents())
    print(json.dumps([app.platformName(), reader.heard]))


if __name__ == "__main__":
    main()
