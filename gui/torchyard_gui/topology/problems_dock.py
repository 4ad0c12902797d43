"""The problems dock, with a summary line and a list. Each problem in the list links to its location."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain

from PySide6.QtCore import QModelIndex, Qt, Signal
from PySide6.QtGui import QIcon, QMouseEvent
from PySide6.QtWidgets import QFrame, QHeaderView, QTableWidget, QTableWidgetItem, QWidget

from torchyard_core.problems import Problem
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.theme.icons import icon, state_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.files.conversion_report import ConversionReport
from torchyard_gui.topology.inspector.inspector import Inspector
from torchyard_gui.topology.problem_locations import HOSTS, ProblemPlace, place_of
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.containers import prepare_rows
from torchyard_gui.widgets.indicators import StateMark
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.next_steps import StepButtons
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import ElidedLabel, label

OPEN_HEIGHT = 140


class ProblemsDock(QFrame):
    """Shows the problems from validation and planning, and the remarks about a converted document."""

    jump = Signal(object)
    """Emitted with the problem whose location should be shown."""
    remark_chosen = Signal(object, object)
    """Emitted with a ConversionReport and the remark that should be shown."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "bottom")
        self.setAccessibleName(self.tr("Problems"))
        self.problems: tuple[Problem, ...] = ()
        self.report: ConversionReport | None = None
        self.line = _Line(self)
        self.line.clicked.connect(self.toggle)
        self.line.dismiss.clicked.connect(lambda: self.show_remarks(None))
        self._layout = vbox(self.line, parent=self, margins=FLUSH, spacing=0)
        theme().changed.connect(self._fill)
        self.show_problems(())

    @cached_property
    def table(self) -> QTableWidget:
        """The table of problems. It is created on first use."""
        table = QTableWidget(0, 3)
        prepare_rows(table, self.tr("Problems"))
        table.horizontalHeader().hide()
        table.setFixedHeight(OPEN_HEIGHT)
        header = table.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for column in (1, 2):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        table.hide()
        table.clicked.connect(self._chosen)
        table.activated.connect(self._chosen)
        self._layout.addWidget(table)
        self.setTabOrder(self.line.dismiss, table)
        self._put_rows(table)
        return table

    @property
    def is_open(self) -> bool:
        return "table" in self.__dict__ and not self.table.isHidden()

    def toggle(self) -> None:
        self.set_open(not self.is_open)

    def set_open(self, opened: bool) -> None:
        if opened != self.is_open:
            self.table.setVisible(opened)
        self.line.arrow.setIcon(icon("chevron-down" if opened else "chevron-right"))

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Shows problems: errors first, then warnings, each in the order of the file."""
        ordered = tuple(sorted(problems, key=lambda problem: (problem.severity != "error", problem.line or 0)))
        if ordered == self.problems and self.line.text.text():
            return
        more = _errors(ordered) > _errors(self.problems)
        self.problems = ordered
        self._show()
        if more and self.isVisible():
            announce(self, self.tr("Problems: {summary}").format(summary=self.line.text.text()))

    def show_remarks(self, report: ConversionReport | None) -> None:
        """Shows the remarks about a converted document. None removes them."""
        self.report = report if report is not None and report.remarks else None
        self._show()
        if self.report is not None:
            self.set_open(True)

    def _show(self) -> None:
        errors = _errors(self.problems)
        summary = self._summary(errors, len(self.problems) - errors)
        self.line.say(summary, "failed" if errors else "warning", bool(self.problems))
        self.line.steps.show_steps(one.next_step for one in self.problems if one.next_step is not None)
        self.line.dismiss.setVisible(self.report is not None)
        self._fill()

    def _fill(self) -> None:
        if "table" in self.__dict__:
            self._put_rows(self.table)

    def _put_rows(self, table: QTableWidget) -> None:
        problems = [
            (state_icon("failed" if one.severity == "error" else "warning"), one.message, one.path, one.line)
            for one in self.problems
        ]
        remarks: list[tuple[QIcon, str, str, int | None]] = []
        if self.report is not None:
            sentences = zip(self.report.sentences(), self.report.remarks, strict=True)
            remarks = [(icon("info"), text, self.report.document, one.line) for text, one in sentences]
        table.setRowCount(len(problems) + len(remarks))
        for row, (mark, text, place, number) in enumerate(chain(problems, remarks)):
            sentence = QTableWidgetItem(mark, text)
            sentence.setToolTip(text)
            path = QTableWidgetItem(place)
            line = QTableWidgetItem(self.tr("line {line}").format(line=number) if number else "")
            for item in (path, line):
                item.setForeground(theme().color("text2"))
            for column, item in enumerate((sentence, path, line)):
                table.setItem(row, column, item)

    def next_problem(self) -> None:
        if self.problems:
            self.set_open(True)
            row = (self.table.currentRow() + 1) % len(self.problems)
            self.table.setCurrentCell(row, 0)
            self.jump.emit(self.problems[row])

    def _summary(self, errors: int, warnings: int) -> str:
        parts = []
        first = self.problems[0].message if self.problems else ""
        if errors:
            parts.append(self.tr("1 error") if errors == 1 else self.tr("{count} errors").format(count=errors))
        if warnings:
            parts.append(self.tr("1 warning") if warnings == 1 else self.tr("{count} warnings").format(count=warnings))
        if self.report is not None:
            count = len(self.report.remarks)
            words = self.tr("1 remark on {file}") if count == 1 else self.tr("{count} remarks on {file}")
            parts.append(words.format(count=count, file=self.report.document))
            first = first or self.report.sentences()[0]
        return f"{', '.join(parts)}: {first}" if parts else self.tr("none")

    def _chosen(self, index: QModelIndex) -> None:
        row = index.row()
        if row < len(self.problems):
            self.jump.emit(self.problems[row])
        elif self.report is not None:
            self.remark_chosen.emit(self.report, self.report.remarks[row - len(self.problems)])


def _errors(problems: Sequence[Problem]) -> int:
    return sum(problem.severity == "error" for problem in problems)


class _Line(QFrame):
    """The summary line of the problems dock. A click on the line opens or closes the list."""

    clicked = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setFixedHeight(theme().metrics.problems)
        self.arrow = tool_button("chevron-right", self.tr("Show or hide problems"), self.clicked)
        self.mark = StateMark("ok")
        self.text = ElidedLabel(ink="2")
        self.dismiss = tool_button("close", self.tr("Dismiss the remarks"))
        self.steps = StepButtons()
        self.dismiss.hide()
        title = label(self.tr("Problems"), role="strong")
        parts = (self.arrow, title, self.mark, (self.text, 1), self.steps, self.dismiss)
        hbox(*parts, parent=self, margins=(8, 0, 12, 0), spacing=8)

    def say(self, text: str, state: str, visible: bool) -> None:
        self.text.setText(text)
        self.mark.set_state(state)
        self.mark.setVisible(visible)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self.rect().contains(event.position().toPoint()):
            self.clicked.emit()


class ProblemNavigation:
    """Moves to the widget in which a problem can be fixed or, if there is none, to the problem's line in the file."""

    def __init__(
        self,
        editor: Editor,
        scene: TopologyScene,
        view: CanvasView,
        inspector: Inspector,
        show_in_palette: Callable[[str], bool],
        show_line: Callable[[int], None],
    ) -> None:
        """Creates the navigation between the given views.

        Args:
            show_in_palette: Focuses a host in the palette; "" focuses the roles. Returns whether the host exists.
            show_line: Shows a line of the file.
        """
        self._editor = editor
        self._scene = scene
        self._view = view
        self._inspector = inspector
        self._show_in_palette = show_in_palette
        self._show_line = show_line

    def to(self, problem: Problem) -> None:
        """Shows the place where a problem can be fixed."""
        place = place_of(problem, self._editor.value, self._scene.unplaced)
        self._editor.select(place.replicas)
        if place.replicas:
            self._view.show_replicas(place.replicas)
        if not self._is_shown(place) and problem.line is not None:
            self._show_line(problem.line)

    def _is_shown(self, place: ProblemPlace) -> bool:
        if place.block == HOSTS:
            return self._view.show_rack(place.key) or self._show_in_palette(place.key)
        if self._inspector.focus(place.block, place.key) or place.replicas:
            return True
        # The user fixes a problem about missing pools by adding roles from the palette.
        return place.block == "pools" and self._show_in_palette("")
