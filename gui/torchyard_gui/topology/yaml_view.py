"""View of the topology as YAML beside the canvas, with marks at lines that have problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QSyntaxHighlighter,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
)
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QWidget

from torchyard_core.problems import Problem
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.editor import Editor
from torchyard_gui.widgets.layouts import FLUSH, vbox

MARK = 12


class YamlView(QPlainTextEdit):
    """Read-only text view."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setReadOnly(True)
        self.setAccessibleName(self.tr("YAML of this topology"))
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
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

    def show_text(self, text: str) -> None:
        """Replaces the text. The scroll position is kept."""
        if text == self.toPlainText():
            return
        bar, across = self.verticalScrollBar(), self.horizontalScrollBar()
        at = bar.value(), across.value()
        self.setPlainText(text)
        bar.setValue(at[0])
        across.setValue(at[1])
        self._mark_lines()

    def show_problems(self, problems: Mapping[int, Problem]) -> None:
        """Marks lines that have problems. Only the first problem of a line is kept."""
        self._problems = dict(problems)
        self._mark_lines()

    def show_lines(self, first: int, last: int) -> None:
        """Highlights lines, counted from 1, and scrolls to the first of them."""
        self._shown = (first, last) if first else None
        self._mark_lines()
        if first and (block := self.document().findBlockByNumber(first - 1)).isValid():
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
            marks.append(self._band(line, theme().color("fail_soft" if problem.severity == "error" else "wait_soft")))
        self.setExtraSelections([mark for mark in marks if not mark.cursor.isNull()])
        self._margin.update()

    def _band(self, line: int, color: QColor) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        block = self.document().findBlockByNumber(line - 1)
        mark.cursor = QTextCursor(block) if block.isValid() else QTextCursor()
        mark.format.setBackground(color)
        mark.format.setProperty(QTextFormat.Property.FullWidthSelection, True)
        return mark

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
    """Margin with line numbers, and with marks of problems that have tool tips."""

    def __init__(self, view: YamlView) -> None:
        super().__init__(view)
        self._view = view

    def sizeHint(self) -> QSize:
        return QSize(self._view.margin_width(), 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        self._view.paint_margin(event)


def monospaced() -> QFont:
    """Returns the monospaced font of the system."""
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    font.setPixelSize(12)
    return font


class YamlPane(QWidget):
    """Pane that contains the text view, which is created on first use."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.file: TopologyFile | None = None
        """The document as last validated, which knows the lines of pools; None if it cannot be parsed."""

    @cached_property
    def view(self) -> YamlView:
        """The text view. It is created on first use, because most windows never need it."""
        made = YamlView()
        vbox(made, parent=self, margins=FLUSH)
        made.show()
        return made

    def show_text(self, problems: Iterable[Problem]) -> None:
        """Shows the current text with marks at the lines that have problems."""
        self.view.show_text(self._editor.document.text.removeprefix("\ufeff"))
        lines: dict[int, Problem] = {}
        for problem in problems:
            if problem.line is not None:
                lines.setdefault(problem.line, problem)
        self.view.show_problems(lines)
        self.point_at_selection()

    def point_at_selection(self) -> None:
        """Highlights the lines of the pools to which the selected replicas belong."""
        if not self.isVisible() or self.file is None:
            return
        lines = [line for at in self._editor.selected_pools() if (line := self.file.line(("pools", at)))]
        self.view.show_lines(min(lines, default=0), max(lines, default=0))

    def point_at(self, line: int) -> None:
        self.view.show_lines(line, line)


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
