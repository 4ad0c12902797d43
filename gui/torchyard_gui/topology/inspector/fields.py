"""Fields that show one value of several blocks of the topology file, and change the value in all of these blocks.

`set_values` takes the value of each block. If the values differ, the field is empty and shows a placeholder.
`committed` is emitted with the new value for all blocks. If a number field contains text that is not a number,
`committed` is emitted with the text, which torchyard_core refuses with a message. If any other field contains text that
cannot be parsed, `misread` is emitted with a message.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QRect, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QHelpEvent,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import (
    QComboBox,
    QFileDialog,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QStyle,
    QStyleOptionFrame,
    QToolTip,
)

from torchyard_gui.theme.icons import icon
from torchyard_gui.topology.labels import tr

INSET = 2
"""Horizontal margin of text in QLineEdit, in pixels."""


class ElidedLine(QLineEdit):
    """A line edit that elides its text while it has no focus. The tool tip then begins with the whole text."""

    taken_at_end = 0
    """Width in pixels that a button occupies at the end of the field."""

    @property
    def shown_text(self) -> str:
        text = self.text()
        room = self._room().width()
        if self.hasFocus() or self.fontMetrics().horizontalAdvance(text) <= room:
            return text
        return self.shortened(room)

    def shortened(self, room: int) -> str:
        """Returns the text, elided to a width in pixels."""
        return self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, room)

    def _room(self) -> QRect:
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        rect = self.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, self)
        return rect.adjusted(INSET, 0, -INSET - self.taken_at_end, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        text = self.shown_text
        if text == self.text():
            super().paintEvent(event)
            return
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        painter = QPainter(self)
        self.style().drawPrimitive(QStyle.PrimitiveElement.PE_PanelLineEdit, option, painter, self)
        painter.setPen(option.palette.text().color())
        painter.drawText(self._room(), int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), text)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip and self.shown_text != self.text():
            QToolTip.showText(event.globalPos(), f"{self.text()}\n{self.toolTip()}".strip(), self)
            return True
        return super().event(event)


LINES = (1, 5)
"""Minimum and maximum number of visible lines of a LinesField."""


class LinesField(QPlainTextEdit):
    """Field for a list of lines. A changed value is committed with Ctrl+Enter, or when the field loses the focus. Tab
    leaves the field.
    """

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
        """Adjusts the height of the field to its wrapped lines."""
        # The layout of a plain-text document gives its height in lines, not in pixels.
        shown = min(max(round(self.document().size().height()), LINES[0]), LINES[1])
        self.setFixedHeight(shown * self.fontMetrics().lineSpacing() + 14)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()  # The height depends on the width at which the lines are wrapped.

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
        """Converts the text to a value. Subclasses may raise ValueError with a message for the user."""
        return [line for line in text.splitlines() if line.strip()]

    def commit(self) -> None:
        if not self.document().isModified():
            return
        self.document().setModified(False)
        _emit_read(self, self.toPlainText())

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.commit()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent) and _commits(event):
            event.accept()  # While the field has the focus, Ctrl+Enter must not trigger a shortcut of the page.
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if _commits(event):
            self.commit()
        else:
            super().keyPressEvent(event)


def _emit_read(field: LineField | LinesField, text: str) -> None:
    """Emits `committed` with the value of the text, or `misread` if the text is invalid."""
    try:
        value = field.read(text)
    except ValueError as problem:
        field.misread.emit(str(problem))
    else:
        field.committed.emit(value)


def _commits(event: QKeyEvent) -> bool:
    """Returns whether a key event is Ctrl+Enter."""
    is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
    return is_enter and bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)


class PairsField(LinesField):
    """Field for `NAME=value` entries, one per line."""

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


def mixed() -> str:
    """Returns the placeholder of a field whose blocks have different values."""
    return tr("several values")


def one_of(values: Sequence[Any]) -> tuple[Any, bool]:
    """Returns (value, True) if all values are equal, otherwise (None, False)."""
    if values and all(value == values[0] for value in values):
        return values[0], True
    return None, False


BUTTON = 24
"""Width of a button inside a line edit, in pixels."""


class LineField(ElidedLine):
    """Field for text. A changed value is committed with Enter, or when the field loses the focus. `empty` is the
    placeholder.
    """

    committed = Signal(object)
    misread = Signal(str)
    """Emitted with a message for text that cannot be parsed."""

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
        """Converts the text to a value. Subclasses may raise ValueError with a message for the user."""
        return text

    def commit(self) -> None:
        self.setModified(False)
        _emit_read(self, self.text())

    def _finish(self) -> None:
        if self.isModified():
            self.commit()


class TextField(LineField):
    """Field for optional text. The value of an empty field is None."""

    def read(self, text: str) -> Any:
        return text.strip() or None


class PathField(TextField):
    """Field for a path. A button, or Alt+Down, opens a file dialog.

    A path that is chosen in the dialog becomes relative if it is inside the base folder.
    """

    def __init__(self, empty: str, base: Callable[[], Path | None], *, folders: bool = False) -> None:
        """Creates a field.

        `base` returns the base folder, or None if there is none. With `folders`, the dialog offers only folders.
        """
        super().__init__(empty)
        self._base = base
        self._folders = folders
        self.taken_at_end = BUTTON
        more = self.addAction(icon("open"), QLineEdit.ActionPosition.TrailingPosition)
        more.setToolTip(tr("Choose a folder …") if folders else tr("Choose a file …"))
        more.triggered.connect(self.choose)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Down and event.modifiers() & Qt.KeyboardModifier.AltModifier:
            self.choose()
            return
        super().keyPressEvent(event)

    def choose(self) -> None:
        """Opens the file dialog at the current path."""
        base = self._base() or Path.home()
        present = base / self.text().strip()
        title = tr("Choose the working folder") if self._folders else tr("Choose the script")
        dialog = QFileDialog(self, title, str(present if present.is_dir() else present.parent), tr("Python (*.py)"))
        dialog.setFileMode(QFileDialog.FileMode.Directory if self._folders else QFileDialog.FileMode.ExistingFile)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly, self._folders)
        dialog.finished.connect(dialog.deleteLater)
        dialog.fileSelected.connect(self._take)
        dialog.open()

    def _take(self, chosen: str) -> None:
        base = self._base()
        path = Path(chosen)
        if base is not None and path.resolve().is_relative_to(base.resolve()):
            chosen = path.resolve().relative_to(base.resolve()).as_posix()
        self.setText(chosen)
        self.commit()


class WholeField(LineField):
    """Field for an integer, which the arrow keys can also change. The value of an empty field is `default`."""

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
    """Field for a number. The value of an empty field is `default`."""

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
    """Field for a list of words in shell syntax."""

    def written(self, value: Any) -> str:
        return shlex.join(value or ())

    def read(self, text: str) -> Any:
        try:
            return shlex.split(text)
        except ValueError:
            raise ValueError(tr("a quote in this line is never closed")) from None


class HostsField(LineField):
    """Field for names of hosts, separated by commas. A button, or Alt+Down, opens a list of the hosts of the fleet."""

    def __init__(self, empty: str = "") -> None:
        super().__init__(empty)
        self._offered: tuple[str, ...] = ()
        self.taken_at_end = BUTTON
        more = self.addAction(icon("chevron-down"), QLineEdit.ActionPosition.TrailingPosition)
        more.setToolTip(tr("Choose hosts of the fleet"))
        more.triggered.connect(self.offer)

    def shortened(self, room: int) -> str:
        """Returns as many complete names as fit, and the number of remaining names; elides the text if no name fits."""
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
        """Opens a menu with the hosts of the fleet."""
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
    """Field for one of several values. The mouse wheel scrolls the panel instead of changing the value."""

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
"""Any kind of field in the inspector."""
