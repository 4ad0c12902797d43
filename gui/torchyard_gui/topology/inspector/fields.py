"""Fields that show one value of many things at once, and tell when somebody has changed it.

`set_values` gives a field the value that each of the things has; where they differ, it says so and stays empty until
somebody types. `committed` carries the new value, for all of them. A value that cannot be is passed on as it was
typed: to refuse it with a sentence is core's.
"""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QWheelEvent
from PySide6.QtWidgets import QComboBox, QLineEdit, QMenu

from torchyard_gui.theme.icons import icon
from torchyard_gui.topology.inspector.elided_line import ElidedLine
from torchyard_gui.topology.inspector.lines_field import LinesField
from torchyard_gui.topology.inspector.values import mixed, one_of
from torchyard_gui.topology.labels import tr

BUTTON = 24
"""What a button inside a line takes of its room."""


class LineField(ElidedLine):
    """Text, committed by Enter and by leaving the field. `empty` is said where there is none."""

    committed = Signal(object)
    misread = Signal(str)
    """A text that is no value at all: why."""

    def __init__(self, empty: str = "") -> None:
        super().__init__()
        self._empty = empty
        self.editingFinished.connect(self._finish)

    def set_values(self, values: Sequence[Any]) -> None:
        value, same = one_of(values)
        self.setPlaceholderText(self._empty if same else mixed())
        text = self.written(value) if same else ""
        if text != self.text() or not self.isModified():
            self.setText(text)
        self.setModified(False)
        self.setCursorPosition(0)

    def written(self, value: Any) -> str:
        return "" if value is None else str(value)

    def read(self, text: str) -> Any:
        """The value of a text. Raises ValueError with a sentence."""
        return text

    def commit(self) -> None:
        """Tells the text as it is now."""
        self.setModified(False)
        try:
            value = self.read(self.text())
        except ValueError as problem:
            self.misread.emit(str(problem))
        else:
            self.committed.emit(value)

    def _finish(self) -> None:
        if self.isModified():
            self.commit()


class TextField(LineField):
    """Text that may be left out: None then."""

    def read(self, text: str) -> Any:
        return text.strip() or None


class WholeField(LineField):
    """A whole number; the arrow keys step it. Without `default` it may be left out."""

    def __init__(self, default: int | None = None, empty: str = "", least: int = 0) -> None:
        super().__init__(empty)
        self._default = default
        self._least = least

    def read(self, text: str) -> Any:
        text = text.strip()
        if not text:
            return self._default
        try:
            return int(text)
        except ValueError:
            return text

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1}.get(Qt.Key(event.key()), 0)
        number = self.read(self.text())
        if not step or not isinstance(number, int):
            super().keyPressEvent(event)
            return
        self.setText(str(max(self._least, number + step)))
        self.commit()


class AmountField(LineField):
    """A number that may be left out."""

    def __init__(self, default: float | None = None, empty: str = "") -> None:
        super().__init__(empty)
        self._default = default

    def written(self, value: Any) -> str:
        return "" if value is None else f"{value:g}"

    def read(self, text: str) -> Any:
        text = text.strip()
        if not text:
            return self._default
        try:
            return float(text)
        except ValueError:
            return text


class WordsField(LineField):
    """Words as a shell takes them: a list of text."""

    def written(self, value: Any) -> str:
        return shlex.join(value or ())

    def read(self, text: str) -> Any:
        try:
            return shlex.split(text)
        except ValueError:
            raise ValueError(tr("a quote in this line is never closed")) from None


class HostsField(LineField):
    """Names of hosts with commas between; the button, or Alt+Down, offers the fleet's."""

    def __init__(self, empty: str = "") -> None:
        super().__init__(empty)
        self._offered: tuple[str, ...] = ()
        self.taken_at_end = BUTTON
        more = self.addAction(icon("chevron-down"), QLineEdit.ActionPosition.TrailingPosition)
        more.setToolTip(tr("Choose hosts of the fleet"))
        more.triggered.connect(self.offer)

    def shortened(self, room: int) -> str:
        """As many whole names as there is room for, and how many more there are."""
        names = self.read(self.text())
        for count in range(len(names) - 1, 0, -1):
            text = f"{self.written(names[:count])} +{len(names) - count}"
            if self.fontMetrics().horizontalAdvance(text) <= room:
                return text
        return super().shortened(room)

    def set_offered(self, hosts: Sequence[str]) -> None:
        self._offered = tuple(hosts)

    def written(self, value: Any) -> str:
        return ", ".join(value or ())

    def read(self, text: str) -> Any:
        return [name for part in text.split(",") if (name := part.strip())]

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Down and event.modifiers() & Qt.KeyboardModifier.AltModifier:
            self.offer()
            return
        super().keyPressEvent(event)

    def offer(self) -> None:
        """Shows the fleet's hosts to tick."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        chosen = self.read(self.text())
        for host in self._offered:
            action = menu.addAction(host)
            action.setCheckable(True)
            action.setChecked(host in chosen)
            action.setData(host)
        if not self._offered:
            menu.addAction(tr("The fleet has no hosts yet")).setEnabled(False)
        menu.triggered.connect(lambda action: self._toggle(action.data()))
        menu.popup(self.mapToGlobal(self.rect().bottomLeft()))

    def _toggle(self, host: str) -> None:
        chosen = self.read(self.text())
        chosen = [name for name in chosen if name != host] if host in chosen else [*chosen, host]
        self.setText(self.written(chosen))
        self.commit()


class ChoiceField(QComboBox):
    """One of a few values. The wheel scrolls the panel, not the value."""

    committed = Signal(object)
    misread = Signal(str)

    def __init__(self, choices: Sequence[tuple[Hashable, str]]) -> None:
        super().__init__()
        self._values: list[Any] = []
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.set_choices(choices)
        self.activated.connect(lambda row: self.committed.emit(self._values[row]))

    def set_choices(self, choices: Sequence[tuple[Any, str]]) -> None:
        self._values = [value for value, _ in choices]
        self.clear()
        self.addItems([text for _, text in choices])

    def set_values(self, values: Sequence[Any]) -> None:
        value, same = one_of(values)
        self.setPlaceholderText("" if same else mixed())
        self.setCurrentIndex(self._values.index(value) if same and value in self._values else -1)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


Field = LineField | ChoiceField | LinesField
"""What a row of the inspector may hold."""
