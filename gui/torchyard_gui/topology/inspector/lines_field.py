"""Fields of several lines: lists and pairs. Long lines are broken, never cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QResizeEvent, QTextOption
from PySide6.QtWidgets import QPlainTextEdit

from torchyard_gui.topology.inspector.values import mixed, one_of
from torchyard_gui.topology.labels import tr

LINES = (1, 5)
"""How many lines of a list are shown at least, and at most."""


class LinesField(QPlainTextEdit):
    """A list of lines, committed by Ctrl+Enter and by leaving the field. Tab leaves it."""

    committed = Signal(object)
    misread = Signal(str)

    def __init__(self, empty: str = "") -> None:
        super().__init__()
        self._empty = empty
        self.setTabChangesFocus(True)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(5)
        self.document().documentLayout().documentSizeChanged.connect(lambda _: self._fit())
        self._fit()

    def _fit(self) -> None:
        """As high as its lines, long ones broken, so that a list that says nothing takes the room of a line."""
        # A plain text's size counts lines, not pixels.
        shown = min(max(round(self.document().size().height()), LINES[0]), LINES[1])
        self.setFixedHeight(shown * self.fontMetrics().lineSpacing() + 14)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()  # another width breaks lines elsewhere

    def set_values(self, values: Sequence[Any]) -> None:
        value, same = one_of(values)
        self.setPlaceholderText(self._empty if same else mixed())
        text = self.written(value) if same else ""
        if text != self.toPlainText():
            self.setPlainText(text)
        self.document().setModified(False)

    def written(self, value: Any) -> str:
        return "\n".join(value or ())

    def read(self, text: str) -> Any:
        """The value of a text. Raises ValueError with a sentence."""
        return [line for line in text.splitlines() if line.strip()]

    def commit(self) -> None:
        """Tells the text as it is now."""
        if not self.document().isModified():
            return
        self.document().setModified(False)
        try:
            value = self.read(self.toPlainText())
        except ValueError as problem:
            self.misread.emit(str(problem))
        else:
            self.committed.emit(value)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.commit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.commit()
            return
        super().keyPressEvent(event)


class PairsField(LinesField):
    """`NAME=value`, one a line."""

    def written(self, value: Any) -> str:
        return "\n".join(f"{name}={text}" for name, text in (value or {}).items())

    def read(self, text: str) -> Any:
        pairs: dict[str, str] = {}
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if not line.strip():
                continue
            if not equals or not name.strip():
                raise ValueError(tr("write each line as NAME=value"))
            pairs[name.strip()] = value
        return pairs
