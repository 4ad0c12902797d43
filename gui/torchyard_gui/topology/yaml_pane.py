"""The text of the topology file beside the canvas. Text that the user types is applied to the document after a short
pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QFrame, QWidget

from torchyard_core.problems import Problem
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.topology.editor import Editor
from torchyard_gui.widgets.indicators import StateMark
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.text_labels import label
from torchyard_gui.widgets.yaml_editor import YamlEditor

PAUSE_MS = 400
"""Milliseconds from the last key press until the text is applied to the document."""


class YamlPane(QWidget):
    """A pane with the text view. While the text is invalid, the canvas shows the last valid state."""

    left = Signal()
    """Emitted when the user leaves the text by keyboard."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.file: TopologyFile | None = None
        """The document as last validated, with the lines of its pools; None if it is invalid, or new and empty."""
        self._typing = QTimer(self, singleShot=True, interval=PAUSE_MS)
        self._typing.timeout.connect(self.apply)
        self._is_showing = False
        editor.settle = self.settle

    @cached_property
    def view(self) -> YamlEditor:
        """The text view. It is created on first use."""
        made = YamlEditor()
        self.strip = ProblemStrip()
        vbox((made, 1), self.strip, parent=self, margins=FLUSH, spacing=0)
        made.textChanged.connect(self._typed)
        made.cursorPositionChanged.connect(self._show_problem)
        made.undo_wanted.connect(self._editor.undo)
        made.redo_wanted.connect(self._editor.redo)
        made.left.connect(self.left)
        self.setFocusProxy(made)
        made.show()
        return made

    @property
    def is_typing(self) -> bool:
        """Whether text that the user has typed has not been applied yet."""
        return self._typing.isActive()

    def _typed(self) -> None:
        if not self._is_showing:
            self._typing.start()

    def apply(self) -> None:
        """Applies the text that the user has typed as an edit of the document."""
        self._typing.stop()
        self._editor.type_text(self.view.text)

    def settle(self) -> None:
        """Applies typed text that has not been applied yet. Called before the document is edited or used."""
        if self.is_typing:
            self.apply()

    def forget(self) -> None:
        """Discards the text that the user has typed. Called when another document is opened."""
        self._typing.stop()

    def show_text(self, problems: Iterable[Problem]) -> None:
        """Shows the current text with marks at the lines that have problems."""
        if self.is_typing:
            return  # The user is typing, so the text is newer than the document.
        self._is_showing = True
        self.view.show_text(self._editor.document.shown_text)
        self._is_showing = False
        lines: dict[int, Problem] = {}
        for problem in problems:
            if problem.line is not None:
                lines.setdefault(problem.line, problem)
        self.view.show_problems(lines)
        self._show_problem()
        self.point_at_selection()

    def _show_problem(self) -> None:
        """Shows the message of the problem at the caret. If there is none and the text is invalid, shows the first
        problem of the text.
        """
        invalid = bool(self._editor.document.problems)
        problem = self.view.problem_at(self.view.line)
        if problem is None and invalid:
            problem = next((found for line in self.view.marked_lines() if (found := self.view.problem_at(line))), None)
        self.strip.say(problem, invalid)

    def point_at_selection(self) -> None:
        """Highlights the lines from the first to the last pool to which the selected replicas belong."""
        if not self.isVisible() or self.file is None:
            return
        lines = [line for at in self._editor.selected_pools() if (line := self.file.line(("pools", at)))]
        first, last = min(lines, default=0), max(lines, default=0)
        self.view.show_lines(first, last, scroll=not self.view.hasFocus())

    def point_at(self, line: int) -> None:
        self.view.show_lines(line, line)


class ProblemStrip(QFrame):
    """Strip below the text that shows the message of a problem."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", "bottom")
        self._mark = StateMark("failed")
        self.text = label(wrap=True)
        hbox(self._mark, (self.text, 1), parent=self, margins=(8, 6, 12, 6), spacing=8)
        self.hide()

    def say(self, problem: Problem | None, invalid: bool) -> None:
        """Shows a problem. `invalid` is True if the YAML text is invalid and the canvas therefore does not show it."""
        self.setVisible(problem is not None)
        if problem is None:
            return
        self._mark.set_state("failed" if problem.severity == "error" else "warning")
        sentence = self.tr("Line {line}: {problem}").format(line=problem.line, problem=problem.message)
        if not sentence.endswith("."):
            sentence += "."
        if invalid:
            sentence += " " + self.tr("The canvas shows the last valid text.")
        self.text.setText(sentence)
