"""A YAML editor with line numbers and with markers on lines that have problems."""

from __future__ import annotations

import re
from collections.abc import Mapping

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFocusEvent,
    QHelpEvent,
    QKeyEvent,
    QKeySequence,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QSyntaxHighlighter,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
)
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QToolTip, QWidget

from torchyard_core.problems import Problem
from torchyard_gui.theme.fonts import monospaced
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.theme import theme

MARK = 12


class YamlEditor(QPlainTextEdit):
    """A text editor without its own undo stack, because the page handles undo and redo.

    A read-only editor does not handle Esc and Tab. It has no caret, so a frame shows that it has the focus.
    """

    undo_wanted = Signal()
    redo_wanted = Signal()
    left = Signal()
    """Emitted when the user presses Esc or Shift+Tab."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setUndoRedoEnabled(False)
        self.setAccessibleName(self.tr("YAML of this topology"))
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.setFont(monospaced())
        self.setStyleSheet("QPlainTextEdit { border: none; border-radius: 0; }")
        self._problems: dict[int, Problem] = {}
        self._shown: tuple[int, int] | None = None
        self._margin = _Margin(self)
        self._colors = YamlColors(self.document())
        self.blockCountChanged.connect(lambda _: self._make_room())
        self.updateRequest.connect(self._scrolled)
        theme().changed.connect(self._mark_lines)
        self._make_room()

    @property
    def text(self) -> str:
        # `toPlainText` would replace no-break spaces, so the raw text is used.
        return self.document().toRawText().replace("\u2029", "\n")

    def show_text(self, text: str) -> None:
        """Shows `text` by replacing only the part of the current text that differs.

        If the editor does not have the focus, the caret, the selection and the scroll position stay the same.
        """
        now = self.text
        if text == now:
            return
        start = _equal_start(text, now)
        end = _equal_start(text[start:][::-1], now[start:][::-1])
        cursor = QTextCursor(self.document())
        cursor.setPosition(_utf16_length(now[:start]))
        cursor.setPosition(_utf16_length(now[: len(now) - end]), QTextCursor.MoveMode.KeepAnchor)
        cursor.insertText(text[start : len(text) - end])
        if self.hasFocus():
            self.setTextCursor(cursor)  # The caret moves to the end of the changed text, for example after an undo.
        self._mark_lines()

    def show_problems(self, problems: Mapping[int, Problem]) -> None:
        """Marks lines that have problems. `problems` contains one problem per line, counted from 1."""
        self._problems = dict(problems)
        self._mark_lines()

    def show_lines(self, first: int, last: int, *, scroll: bool = True) -> None:
        """Highlights lines, counted from 1. With `scroll`, moves the caret to the first of them. If `first` is 0,
        removes the highlight.
        """
        self._shown = (first, last) if first else None
        self._mark_lines()
        if scroll and first and (block := self.document().findBlockByNumber(first - 1)).isValid():
            self.setTextCursor(QTextCursor(block))
            self.ensureCursorVisible()

    def marked_lines(self) -> list[int]:
        """Returns the numbers of the lines that have a problem."""
        return sorted(self._problems)

    def _mark_lines(self) -> None:
        marks: list[QTextEdit.ExtraSelection] = []
        first, last = self._shown or (0, -1)
        for line in range(first, last + 1):
            marks.append(self._band(line, theme().color("accent_soft")))
        for line, problem in self._problems.items():
            token = "fail" if problem.severity == "error" else "wait"
            marks.append(self._band(line, theme().color(f"{token}_soft")))
            marks.append(self._underline(line, problem.message, theme().color(token)))
        self.setExtraSelections([mark for mark in marks if not mark.cursor.isNull()])
        self._margin.update()

    def _band(self, line: int, color: QColor) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        block = self.document().findBlockByNumber(line - 1)
        mark.cursor = QTextCursor(block) if block.isValid() else QTextCursor()
        mark.format.setBackground(color)
        mark.format.setProperty(QTextFormat.Property.FullWidthSelection, True)
        return mark

    def _underline(self, line: int, message: str, color: QColor) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        block = self.document().findBlockByNumber(line - 1)
        mark.cursor = QTextCursor(block) if block.isValid() else QTextCursor()
        if block.isValid():
            first, last = wrong_part(block.text(), message)
            start = block.position() + _utf16_length(block.text()[:first])
            mark.cursor.setPosition(start)
            length = _utf16_length(block.text()[first:last])
            mark.cursor.setPosition(start + length, QTextCursor.MoveMode.KeepAnchor)
        mark.format.setUnderlineStyle(QTextCharFormat.UnderlineStyle.WaveUnderline)
        mark.format.setUnderlineColor(color)
        return mark

    def problem_at(self, line: int) -> Problem | None:
        return self._problems.get(line)

    @property
    def line(self) -> int:
        """The line of the caret, counted from 1."""
        return self.textCursor().blockNumber() + 1

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.isReadOnly() and self.hasFocus():
            width = theme().metrics.focus_ring
            painter = QPainter(self.viewport())
            painter.setPen(theme().pen("accent", width))
            painter.drawRect(self.viewport().rect().adjusted(width // 2, width // 2, -width // 2, -width // 2))

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            self.tell_problem(event.globalPos(), event.pos().y())
            return True
        return super().viewportEvent(event)

    def tell_problem(self, place: QPoint, height: int) -> None:
        """Shows a tool tip with the problem of the line at a vertical viewport position."""
        problem = self.problem_at(self.cursorForPosition(QPoint(0, height)).blockNumber() + 1)
        QToolTip.showText(place, problem.message if problem is not None else "", self)

    def event(self, event: QEvent) -> bool:
        if (
            isinstance(event, QKeyEvent)
            and event.type() == QEvent.Type.ShortcutOverride
            and not self.isReadOnly()
            and _is_undo(event)
        ):
            event.accept()  # The key goes to `keyPressEvent`, even if the page has nothing to undo.
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key, cursor = event.key(), self.textCursor()
        if self.isReadOnly():
            super().keyPressEvent(event)
        elif event.matches(QKeySequence.StandardKey.Undo):
            self.undo_wanted.emit()
        elif _is_undo(event):
            self.redo_wanted.emit()
        elif key == Qt.Key.Key_Escape:
            self.left.emit()
        elif key == Qt.Key.Key_Tab and not cursor.hasSelection():
            cursor.insertText(" " * (INDENT - cursor.positionInBlock() % INDENT))
        elif key == Qt.Key.Key_Backtab:
            self.left.emit()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and not event.modifiers() & CONTROL:
            cursor.insertText("\n" + " " * indent_after(cursor.block().text()[: cursor.positionInBlock()]))
            self.ensureCursorVisible()
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.createStandardContextMenu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for action in menu.actions()[:3]:
            menu.removeAction(action)  # These are undo, redo and a separator. The page has its own undo and redo.
        menu.popup(event.globalPos())

    # The following methods implement the margin with line numbers.

    def margin_width(self) -> int:
        digits = len(str(max(1, self.blockCount())))
        return MARK + 12 + self.fontMetrics().horizontalAdvance("9") * max(2, digits)

    def _make_room(self) -> None:
        self.setViewportMargins(self.margin_width(), 0, 0, 0)

    def _scrolled(self, rect: QRect, by: int) -> None:
        if by:
            self._margin.scroll(0, by)
        else:
            self._margin.update(0, rect.y(), self._margin.width(), rect.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        inside = self.contentsRect()
        self._margin.setGeometry(QRect(inside.left(), inside.top(), self.margin_width(), inside.height()))

    def paint_margin(self, event: QPaintEvent) -> None:
        painter = QPainter(self._margin)
        painter.fillRect(event.rect(), theme().color("s1"))
        painter.setFont(self.font())
        block = self.firstVisibleBlock()
        top = self.blockBoundingGeometry(block).translated(self.contentOffset()).top()
        while block.isValid() and top <= event.rect().bottom():
            height = self.blockBoundingRect(block).height()
            line = block.blockNumber() + 1
            problem = self._problems.get(line)
            if problem is not None:
                state = "failed" if problem.severity == "error" else "warning"
                paint_state(painter, QRect(4, round(top + (height - MARK) / 2), MARK, MARK).toRectF(), state)
            painter.setPen(theme().pen("text3"))
            box = QRect(0, round(top), self._margin.width() - 6, round(height))
            painter.drawText(box, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), str(line))
            block = block.next()
            top += height


class _Margin(QWidget):
    """The margin with line numbers and with marks for problems, which have tool tips."""

    def __init__(self, editor: YamlEditor) -> None:
        super().__init__(editor)
        self._editor = editor

    def sizeHint(self) -> QSize:
        return QSize(self._editor.margin_width(), 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        self._editor.paint_margin(event)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            self._editor.tell_problem(event.globalPos(), event.pos().y())
            return True
        return super().event(event)


INDENT = 2
CONTROL = Qt.KeyboardModifier.ControlModifier
_REDO = QKeySequence("Ctrl+Y"), QKeySequence("Ctrl+Shift+Z")


def _is_undo(event: QKeyEvent) -> bool:
    """Returns whether a key event means undo or redo."""
    keys = QKeySequence.StandardKey
    return event.matches(keys.Undo) or event.matches(keys.Redo) or QKeySequence(event.keyCombination()) in _REDO


def indent_after(line: str) -> int:
    """Returns the indentation of the line after `line`: one level deeper below a key without a value."""
    text = line.split(" #")[0].rstrip()
    own = len(line) - len(line.lstrip(" "))
    dash = 2 if text.lstrip(" ").startswith("- ") else 0
    return own + dash + INDENT if text.endswith(":") else own + dash


_NAMED = re.compile(r"`([^`]+)`|“([^”]+)”|'([^']+)'")


def wrong_part(line: str, message: str) -> tuple[int, int]:
    """Returns the part of a line that a problem concerns: a word that the message quotes, otherwise all except the
    comment.
    """
    for match in _NAMED.finditer(message):
        word = next(group for group in match.groups() if group)
        at = line.find(word)
        if at >= 0:
            return at, at + len(word)
    text = line.split(" #")[0].rstrip()
    return len(line) - len(line.lstrip(" ")), len(text) or len(line)


def _equal_start(one: str, other: str) -> int:
    """Returns the length of the common prefix of two strings."""
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


def _utf16_length(text: str) -> int:
    """Returns the length of a string as Qt counts it, in UTF-16 code units."""
    return len(text.encode("utf-16-le")) // 2


_KEY = re.compile(r"(?:^|[{,]|^\s*-)\s*([A-Za-z_][\w.-]*)\s*:(?=\s|$)")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")


class YamlColors(QSyntaxHighlighter):
    """Syntax highlighter with the colours of the theme."""

    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        theme().changed.connect(self.rehighlight)

    def highlightBlock(self, text: str) -> None:
        for match in _KEY.finditer(text):
            self.setFormat(match.start(1), len(match[1]), _ink("accent"))
        for match in _QUOTED.finditer(text):
            self.setFormat(match.start(), len(match[0]), _ink("reducer"))
        for match in _COMMENT.finditer(text):
            self.setFormat(match.start(), len(match[0]), _ink("text3"))


def _ink(token: str) -> QTextCharFormat:
    ink = QTextCharFormat()
    ink.setForeground(theme().brush(token))
    return ink
