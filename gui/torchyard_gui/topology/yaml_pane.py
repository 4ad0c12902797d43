"""The pane beside the canvas that shows the file's text, its problems, and the lines of what is selected."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QVBoxLayout, QWidget

from torchyard_core.problems import Problem
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.topology.editor import Editor

if TYPE_CHECKING:
    from torchyard_gui.topology.yaml_view import YamlView


class YamlPane(QWidget):
    """Empty until somebody wants to see the text."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.file: TopologyFile | None = None
        """The document as it was last checked, which knows the lines of pools; None where it cannot be read."""

    @cached_property
    def view(self) -> YamlView:
        """The text; made when it is first shown, which for most windows is never."""
        from torchyard_gui.topology.yaml_view import YamlView

        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        made = YamlView()
        layout.addWidget(made)
        made.show()
        return made

    def show_text(self, problems: Iterable[Problem]) -> None:
        """Shows the text as it is now, with a mark at the line of each problem."""
        self.view.show_text(self._editor.document.text.removeprefix("\ufeff"))
        lines: dict[int, Problem] = {}
        for problem in problems:
            if problem.line is not None:
                lines.setdefault(problem.line, problem)
        self.view.show_problems(lines)
        self.point_at_selection()

    def point_at_selection(self) -> None:
        """Points at the lines of the selected replicas' pools."""
        if not self.isVisible() or self.file is None:
            return
        lines = [line for at in self._editor.selected_pools() if (line := self.file.line(("pools", at)))]
        self.view.show_lines(min(lines, default=0), max(lines, default=0))

    def point_at(self, line: int) -> None:
        self.view.show_lines(line, line)
