"""The notices of the Topology page. Only the notice with the highest priority is shown, with its buttons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QObject

from torchyard_core.errors import TorchyardError
from torchyard_gui.widgets.next_steps import button_text, error_text, take_step, with_buttons
from torchyard_gui.widgets.notice_bar import Kind, NoticeBar

ORDER = ("file", "disk", "read-only", "recovery", "restored", "launch", "place", "export")
"""The subjects of notices by priority. There is at most one notice about each subject."""


@dataclass(frozen=True)
class NoticeButton:
    """A button of a notice: its text, and the function that it calls."""

    text: str
    take: Callable[[], object]


@dataclass(frozen=True)
class Notice:
    kind: Kind
    text: str
    buttons: tuple[NoticeButton, ...] = ()


class NoticeQueue(QObject):
    """Shows the notice with the highest priority in a NoticeBar."""

    def __init__(self, bar: NoticeBar) -> None:
        super().__init__(bar)
        self._bar = bar
        self._notices: dict[str, Notice] = {}
        self._shown = ""
        bar.action_triggered.connect(self._take)
        bar.closed.connect(self._dismissed)

    def show(self, subject: str, kind: Kind, text: str, *buttons: NoticeButton) -> None:
        self._notices[subject] = Notice(kind, text, buttons)
        self._show()

    def show_error(self, subject: str, error: TorchyardError, *buttons: NoticeButton) -> None:
        """Sets the notice about a subject to an error, with buttons for the error's next steps."""
        taken = [NoticeButton(button_text(one), partial(take_step, self._bar, one)) for one in with_buttons(error.next)]
        self.show(subject, "fail", error_text(error, has_buttons=True), *buttons, *taken)

    def clear(self, subject: str) -> None:
        if self._notices.pop(subject, None) is not None:
            self._show()

    def _show(self) -> None:
        self._shown = min(self._notices, key=ORDER.index, default="")
        notice = self._notices.get(self._shown)
        if notice is None:
            self._bar.clear()
        else:
            self._bar.show_notice(notice.kind, notice.text, *(way.text for way in notice.buttons))

    def _take(self, number: int) -> None:
        notice = self._notices.pop(self._shown, None)
        self._show()
        if notice is not None:
            notice.buttons[number].take()

    def _dismissed(self) -> None:
        self._notices.pop(self._shown, None)
        self._show()
