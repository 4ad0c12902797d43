"""What every gesture is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from PySide6.QtCore import QPoint, Qt


class Gesture(ABC):
    """In progress from its making until `finish` or `cancel`, of which exactly one is called.

    Positions are the viewport's.
    """

    cursor: Qt.CursorShape | None = None

    @abstractmethod
    def move(self, position: QPoint) -> None: ...

    @abstractmethod
    def finish(self, position: QPoint) -> None: ...

    @abstractmethod
    def cancel(self) -> None:
        """Leave everything as it was before."""
