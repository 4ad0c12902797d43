"""The base class of mouse gestures."""

from __future__ import annotations

from abc import ABC, abstractmethod

from PySide6.QtCore import QPoint, Qt


class Gesture(ABC):
    """A mouse gesture in progress.

    A gesture lasts from its creation until `finish` or `cancel` is called. Positions are in viewport pixels.
    """

    cursor: Qt.CursorShape | None = None

    @abstractmethod
    def move(self, position: QPoint) -> None: ...

    @abstractmethod
    def finish(self, position: QPoint) -> None: ...

    @abstractmethod
    def cancel(self) -> None:
        """Cancels the gesture and restores the state before the gesture."""
