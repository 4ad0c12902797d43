"""The problems dock: a line that says how things stand, and above it, when open, every problem to jump to."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, Qt, Signal
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from torchyard_core.topology.problems import Problem
from torchyard_gui.theme.icons import icon, state_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.labels import ElidedLabel, label
from torchyard_gui.widgets.state_mark import StateMark

OPEN_HEIGHT = 140


class ProblemsDock(QFrame):
    """Problems as `torchyard validate` and the planner tell them."""

    jump = Signal(object)
    """The problem to go to."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "bottom")
        self.setAccessibleName(self.tr("Problems"))
        self.problems: tuple[Problem, ...] = ()
        self.line = _Line(self)
        self.line.clicked.connect(self.toggle)
        self.table = QTableWidget(0, 3)
        self.table.setAccessibleName(self.tr("Problems"))
        self.table.horizontalHeader().hide()
        self.table.verticalHeader().hide()
        self.table.verticalHeader().setDefaultSectionSize(theme().metrics.row)
        self.table.setShowGrid(False)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setTabKeyNavigation(False)
        self.table.setFixedHeight(OPEN_HEIGHT)
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for column in (1, 2):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self.table.hide()
        self.table.clicked.connect(self._chosen)
        self.table.activated.connect(self._chosen)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.line)
        layout.addWidget(self.table)
        theme().changed.connect(self._fill)
        self.show_problems(())

    @property
    def is_open(self) -> bool:
        return not self.table.isHidden()

    def toggle(self) -> None:
        self.set_open(not self.is_open)

    def set_open(self, opened: bool) -> None:
        """Opens or shuts the list."""
        self.table.setVisible(opened)
        self.line.arrow.setIcon(icon("chevron-down" if opened else "chevron-right"))

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Errors first, then warnings, each in the order of the file."""
        ordered = tuple(sorted(problems, key=lambda problem: (problem.severity != "error", problem.line or 0)))
        if ordered == self.problems and self.line.text.text():
            return
        self.problems = ordered
        errors = sum(problem.severity == "error" for problem in ordered)
        self.line.say(self._summary(errors, len(ordered) - errors), "failed" if errors else "warning", bool(ordered))
        self._fill()

    def _fill(self) -> None:
        self.table.setRowCount(len(self.problems))
        for row, problem in enumerate(self.problems):
            sentence = QTableWidgetItem(state_icon("failed" if problem.severity == "error" else "warning"), "")
            sentence.setText(problem.message)
            sentence.setToolTip(problem.message)
            path = QTableWidgetItem(problem.path)
            line = QTableWidgetItem(self.tr("line {line}").format(line=problem.line) if problem.line else "")
            for item in (path, line):
                item.setForeground(theme().color("text2"))
            for column, item in enumerate((sentence, path, line)):
                self.table.setItem(row, column, item)

    def next_problem(self) -> None:
        """Goes to the problem after the current one."""
        if self.problems:
            self.set_open(True)
            row = (self.table.currentRow() + 1) % len(self.problems)
            self.table.setCurrentCell(row, 0)
            self.jump.emit(self.problems[row])

    def _summary(self, errors: int, warnings: int) -> str:
        if not self.problems:
            return self.tr("none")
        parts = []
        if errors:
            parts.append(self.tr("1 error") if errors == 1 else self.tr("{count} errors").format(count=errors))
        if warnings:
            parts.append(self.tr("1 warning") if warnings == 1 else self.tr("{count} warnings").format(count=warnings))
        return ", ".join(parts) + ": " + self.problems[0].message

    def _chosen(self, index: QModelIndex) -> None:
        self.jump.emit(self.problems[index.row()])


class _Line(QFrame):
    """The dock's head: opens and shuts it."""

    clicked = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setFixedHeight(theme().metrics.problems)
        self.arrow = QToolButton()
        self.arrow.setIcon(icon("chevron-right"))
        self.arrow.setToolTip(self.tr("Show or hide problems"))
        self.arrow.setAccessibleName(self.tr("Show or hide problems"))
        self.arrow.clicked.connect(self.clicked)
        self.mark = StateMark("ok")
        self.text = ElidedLabel()
        self.text.setProperty("ink", "2")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(8, 0, 12, 0)
        layout.setSpacing(8)
        layout.addWidget(self.arrow)
        layout.addWidget(label(self.tr("Problems"), role="strong"))
        layout.addWidget(self.mark)
        layout.addWidget(self.text, 1)

    def say(self, text: str, state: str, visible: bool) -> None:
        self.text.setText(text)
        self.mark.set_state(state)
        self.mark.setVisible(visible)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self.rect().contains(event.position().toPoint()):
            self.clicked.emit()
