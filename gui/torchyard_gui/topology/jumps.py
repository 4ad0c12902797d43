"""From a problem to where it can be mended: replicas, a field, a host, a line of the file."""

from __future__ import annotations

from collections.abc import Callable

from torchyard_core.problems import Problem
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.inspector import Inspector
from torchyard_gui.topology.problem_locations import HOSTS, ProblemPlace, place_of


class Jumps:
    """Every problem leads somewhere: what no other place shows is at least in the file's text."""

    def __init__(
        self,
        editor: Editor,
        scene: TopologyScene,
        view: CanvasView,
        inspector: Inspector,
        show_in_palette: Callable[[str], bool],
        show_line: Callable[[int], None],
    ) -> None:
        """`show_in_palette` goes to a host, or for "" to the roles; `show_line` to a line of the file."""
        self._editor = editor
        self._scene = scene
        self._view = view
        self._inspector = inspector
        self._show_in_palette = show_in_palette
        self._show_line = show_line

    def to(self, problem: Problem) -> None:
        """Goes to where a problem can be mended."""
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
        # It is about all pools: what is lacking is added from the palette.
        return place.block == "pools" and self._show_in_palette("")
