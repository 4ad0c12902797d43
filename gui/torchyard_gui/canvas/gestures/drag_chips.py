"""The gesture that drags chips. A drop on a slot or host pins the replicas; a drop outside all racks unpins them.

In the arrangement by group, a drop on a frame moves the replicas to that group, and a drop outside all frames makes a
new group.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtWidgets import QApplication

from torchyard_gui.canvas import labels
from torchyard_gui.canvas.gestures.drag_preview import DragPreview
from torchyard_gui.canvas.gestures.snapshot_cache import SnapshotCache
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.zoom_view import ZoomView
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.gesture import Gesture

Fits = Callable[[list[str], str], str]
"""Function that returns why replicas cannot be moved to a target, or "" if they can."""
Effect = Callable[[list[str], str], str]
"""Function that returns a description of the effect of dropping replicas on a target, or "" if the drop changes
nothing.
"""

GRIP = QPoint(M.slot_width // 4, M.slot_height // 2)
"""The position of the cursor within the dragged chip."""


class DragChips(Gesture):
    """Gesture that begins with a press on a chip.

    Once the pointer has moved by Qt's start drag distance, the chip is dragged. If the chip is selected, all selected
    chips are dragged.
    """

    cursor = Qt.CursorShape.ClosedHandCursor

    def __init__(
        self,
        view: ZoomView,
        scene: TopologyScene,
        pressed: str,
        position: QPoint,
        fits: Fits | None,
        drop: Callable[[list[str], str], None],
        effect: Effect | None = None,
    ):
        """Starts the gesture. If `fits` is None, chips can be clicked but not dragged.

        Args:
            effect: Returns a description of a drop's effect. The default describes the pinning of replicas.
        """
        self._view = view
        self._scene = scene
        self._pressed = pressed
        self._names = scene.selection if pressed in scene.selection else [pressed]
        self._start = position
        self._room = view.viewport().size().toTuple()
        self._fits = fits
        self._drop = drop
        self._effect = effect if effect is not None else self._pinning
        self._ghost: DragPreview | None = None
        self._still: SnapshotCache | None = None
        self._target = ""
        self._reason = ""

    @property
    def is_carrying(self) -> bool:
        return self._ghost is not None

    @property
    def caption(self) -> str:
        """The text of the preview at the pointer, or "" if there is none."""
        return self._ghost.caption if self._ghost is not None else ""

    def move(self, position: QPoint) -> None:
        if self._ghost is None or self._still is None:
            far = (position - self._start).manhattanLength() >= QApplication.startDragDistance()
            if self._fits is None or not far:
                return
            self._ghost = self._lift()
            self._still = SnapshotCache(self._view, self._scene, self._ghost.item)
        point = self._view.mapToScene(position)
        self._aim(self._scene.target_at(point), point)
        self._ghost.move(point, position, self._room)
        if not self._still.is_taken:
            self._still.moved()

    def finish(self, position: QPoint) -> None:
        self.move(position)
        if self._ghost is None:
            if len(self._names) > 1 and not QApplication.keyboardModifiers():
                # A click without a modifier key selects only the clicked chip.
                self._scene.set_selection([self._pressed])
            return
        target, reason = self._target, self._reason
        changes = not reason and bool(self._effect(self._names, target))
        self._put_down()
        if changes:
            self._drop(self._names, target)

    def cancel(self) -> None:
        if self._ghost is not None:
            self._put_down()

    def _lift(self) -> DragPreview:
        # In the preview, the pressed chip is on top of the stack.
        order = [self._pressed, *(name for name in self._names if name != self._pressed)]
        chips = [chip for name in order if (chip := self._scene.chip(name)) is not None]
        ghost = DragPreview(self._scene, chips, GRIP, self._view.devicePixelRatioF())
        self._scene.set_lifted(self._names)
        self._target = "?"
        return ghost

    def _aim(self, target: str, point: QPointF) -> None:
        # The reason for a refusal is computed only when the target changes: computing it on every mouse move would be
        # too slow.
        if target == self._target or self._ghost is None or self._fits is None:
            return
        self._target = target
        effect = self._effect(self._names, target)
        self._reason = self._fits(self._names, target) if effect else ""
        there = self._scene.replica_at(point)
        if effect and self._swaps(there):
            effect = labels.swap_text(there, target)
        self._ghost.say(self._reason or effect or labels.no_change(), bool(self._reason))
        self._scene.set_target(target, not self._reason)

    def _swaps(self, there: str) -> bool:
        """Returns whether a drop on the replica `there` swaps the positions of `there` and the dragged replica.

        Both replicas must be placed on the same number of GPUs.
        """
        own, other = self._scene.chip(self._pressed), self._scene.chip(there)
        if self._scene.by_group or own is None or other is None or len(self._names) > 1 or there in self._names:
            return False
        return bool(own.host) and 0 < len(own.gpus) == len(other.gpus)

    def _pinning(self, names: list[str], target: str) -> str:
        chips = [chip for name in self._names if (chip := self._scene.chip(name)) is not None]
        changes = True
        if not target:
            changes = any(chip.pinned for chip in chips)
        elif len(chips) == 1 and chips[0].gpus:
            changes = target not in {f"{chips[0].host}:{gpu}" for gpu in chips[0].gpus}
        return labels.target_text(target) if changes else ""

    def _put_down(self) -> None:
        if self._still is not None:
            self._still.end()
            self._still = None
        if self._ghost is not None:
            self._ghost.remove()
            self._ghost = None
        self._scene.set_lifted(())
        self._scene.set_target(None)
