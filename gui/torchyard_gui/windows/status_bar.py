"""The status bar, with a summary of the fleet and the status of the current page."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.indicators import StateMark
from torchyard_gui.widgets.layouts import hbox, remove_widgets
from torchyard_gui.widgets.text_labels import label

StatusText = str | tuple[str, str]
"""An entry of the status bar: its text, or a state and a text. The state is shown as a mark before the text."""


class StatusBar(QFrame):
    """Bar with entries at the left, each with an optional state mark, and one line of text at the right."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "bottom")
        self.setFixedHeight(theme().metrics.status)
        self._entries: list[StatusText] = []
        self._shown: list[QWidget] = []
        self._right = label(role="small", ink="2")
        self._layout = hbox((None, 1), self._right, parent=self, margins=(14, 0, 14, 0), spacing=6)

    @property
    def texts(self) -> list[str]:
        """The text of each entry, from left to right."""
        return [entry if isinstance(entry, str) else entry[1] for entry in self._entries]

    def say(self, texts: Iterable[StatusText], right: str = "") -> None:
        """Replaces the entries and the text at the right. If the entries have not changed, their widgets are kept."""
        wanted = [entry for entry in texts if entry and (isinstance(entry, str) or entry[1])]
        self._right.setText(right)
        if wanted == self._entries:
            return
        self._entries = wanted
        remove_widgets(self._layout, self._shown)
        self._shown = []
        for entry in wanted:
            state, text = ("", entry) if isinstance(entry, str) else entry
            if state:
                self._show(StateMark(state, 14))
            words: QLabel = label(text, role="small", ink="2")
            words.setContentsMargins(0, 0, 10, 0)
            words.setAlignment(Qt.AlignmentFlag.AlignVCenter)
            self._show(words)
        self.setAccessibleName(". ".join(self.texts))

    def _show(self, widget: QWidget) -> None:
        self._layout.insertWidget(len(self._shown), widget)
        self._shown.append(widget)
