"""A role from the palette held over the canvas."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QGraphicsView

from torchyard_gui.canvas import labels
from torchyard_gui.canvas.gestures.drag_preview import Ghost
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.widgets.gesture import Gesture


class DropRole(Gesture):
    """A role goes to the rack below the cursor, else wherever the planner puts it."""

    def __init__(
        self,
        view: QGraphicsView,
        scene: TopologyScene,
        role: str,
        fits: Callable[[str, str], str],
        drop: Callable[[str, str], None],
    ):
        self._view = view
        self._scene = scene
        self._role = role
        self._fits = fits
        self._drop = drop
        self._host = "?"
        self._reason = ""
        self._ghost = Ghost(scene, (), QPoint(), view.devicePixelRatioF())

    @property
    def accepts(self) -> bool:
        return not self._reason

    @property
    def caption(self) -> str:
        return self._ghost.caption

    def move(self, position: QPoint) -> None:
        point = self._view.mapToScene(position)
        self._aim(self._scene.target_at(point).partition(":")[0])
        self._ghost.move(point, position, self._view.viewport().size().toTuple())

    def _aim(self, host: str) -> None:
        if host == self._host:
            return
        self._host = host
        self._reason = self._fits(self._role, host)
        self._ghost.say(self._reason or labels.add_text(self._role, host), bool(self._reason))
        self._scene.set_target(host, not self._reason)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self.cancel()
        if not self._reason:
            self._drop(self._role, self._host)

    def cancel(self) -> None:
        self._ghost.remove()
        self._scene.set_target(None)
