"""Validates the topology shortly after each edit, and shows each problem at its location."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.launch.rank_assignment import plan
from torchyard_core.problems import Problem
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.inspector import Inspector
from torchyard_gui.topology.problem_locations import in_window, place_of
from torchyard_gui.topology.problems_dock import ProblemsDock
from torchyard_gui.topology.yaml_pane import YamlPane

CHECK_AFTER_MS = 120
"""Delay in milliseconds from the last edit to the validation, which reads files and is too slow for every key press."""


class Validation(QObject):
    """Runs the checks of `torchyard validate` and `torchyard plan`, with a delay (`soon`) or immediately (`now`)."""

    validated = Signal()

    def __init__(
        self,
        editor: Editor,
        scene: TopologyScene,
        problems: ProblemsDock,
        inspector: Inspector,
        yaml: YamlPane,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._editor = editor
        self._scene = scene
        self._problems = problems
        self._inspector = inspector
        self._yaml = yaml
        self._timer = QTimer(self, singleShot=True, interval=CHECK_AFTER_MS)
        self._timer.timeout.connect(self.now)

    def soon(self) -> None:
        self._timer.start()

    def now(self) -> None:
        """Validates the topology, and shows its problems in the list, at fields, on chips and at lines of the text."""
        self._timer.stop()
        document, file = self._editor.document, None
        if document.problems:
            found: tuple[Problem, ...] = in_window(document.problems)
        elif not document.value.pools and not document.is_modified:
            found = ()  # A new document is empty, which does not count as an error.
        else:
            value, hosts = self._editor.plan_input()
            file = replace(document.as_file(), topology=value)
            checked = plan(value, hosts, found=file.check(hosts), line=file.line)
            found = in_window(checked.problems)
        self._yaml.file = file
        self._problems.show_problems(found)
        self._inspector.show_problems(found)
        # While the text is invalid, the chips show the last valid text, to which the problems do not apply.
        self._mark_chips(() if document.problems else found)
        if self._yaml.isVisible():
            self._yaml.show_text(self._problems.problems)
        self.validated.emit()

    @property
    def errors(self) -> int:
        """The number of errors in the document as last validated, without the errors of the plan.

        A topology with such errors cannot be launched.
        """
        file = self._yaml.file
        found = file.check(self._editor.facts()) if file is not None else self._editor.document.problems
        return sum(problem.severity == "error" for problem in found)

    def _mark_chips(self, problems: tuple[Problem, ...]) -> None:
        marks: dict[str, str] = {}
        for problem in problems:
            for name in place_of(problem, self._editor.document.value, self._scene.unplaced).replicas:
                marks.setdefault(name, problem.message)
        self._scene.show_problems(marks)
