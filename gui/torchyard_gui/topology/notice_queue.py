"""What the page has to say at its top: one notice at a time, the most pressing first, each with its ways out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject

from torchyard_gui.widgets.notice_bar import Kind, NoticeBar

ORDER = ("file", "disk", "read-only", "recovery", "launch", "export")
"""Subjects, the most pressing first. A subject has one notice."""


@dataclass(frozen=True)
class WayOut:
    """A button of a notice."""

    text: str
    take: Callable[[], object]


@dataclass(frozen=True)
class Notice:
    kind: Kind
    text: str
    ways_out: tuple[WayOut, ...] = ()


class Notices(QObject):
    """Feeds a NoticeBar."""

    def __init__(self, bar: NoticeBar) -> None:
        super().__init__(bar)
        self._bar = bar
        self._told: dict[str, Notice] = {}
        self._shown = ""
        bar.action_triggered.connect(self._take)
        bar.closed.connect(self._dismissed)

    def tell(self, subject: str, kind: Kind, text: str, *ways_out: WayOut) -> None:
        """Says something about a subject, in place of what was said about it before."""
        self._told[subject] = Notice(kind, text, ways_out)
        self._show()

    def clear(self, subject: str) -> None:
        """Nothing is the matter with a subject any more."""
        if self._told.pop(subject, None) is not None:
            self._show()

    def told(self, subject: str) -> Notice | None:
        """What is said about a subject, shown or waiting for its turn."""
        return self._told.get(subject)

    def _show(self) -> None:
        self._shown = min(self._told, key=ORDER.index, default="")
        notice = self._told.get(self._shown)
        if notice is None:
            self._bar.clear()
        else:
            self._bar.show_notice(notice.kind, notice.text, *(way.text for way in notice.ways_out))

    def _take(self, number: int) -> None:
        notice = self._told.pop(self._shown, None)
        self._show()
        if notice is not None:
            notice.ways_out[number].take()

    def _dismissed(self) -> None:
        self._told.pop(self._shown, None)
        self._show()
