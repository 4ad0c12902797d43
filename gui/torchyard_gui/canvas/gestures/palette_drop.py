"""Gestures that drag roles and machine types from the palette to the canvas, and the MIME types of these drags."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QMimeData, QPoint
from PySide6.QtWidgets import QGraphicsView

from torchyard_gui.canvas import labels
from torchyard_gui.canvas.gestures.drag_preview import DragPreview
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.widgets.gesture import Gesture


class DropRole(Gesture):
    """Gesture that drags a role. A drop on a rack adds a replica to its host; after a drop elsewhere, the planner
    places the new replica.
    """

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
        self._ghost = DragPreview(scene, (), QPoint(), view.devicePixelRatioF())

    @property
    def accepts(self) -> bool:
        return not self._reason

    @property
    def caption(self) -> str:
        return self._ghost.caption

    def move(self, position: QPoint) -> None:
        point = self._view.mapToScene(position)
        self._aim(self._scene.host_at(point))
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


MachineEffect = Callable[[str, Sequence[str]], tuple[str, bool]]
"""Returns a sentence about the effect of a machine type on the replicas' pools, and whether the type can be applied."""


class DropMachine(Gesture):
    """Gesture that drags a machine type.

    A drop on a replica applies the machine type to the replica's pool. If the replica is selected, the machine type is
    applied to the pools of all selected replicas. A drop on a rack applies it to the pools of all replicas on the host.
    A drop elsewhere applies it to the pools of all selected replicas.
    """

    def __init__(
        self,
        view: QGraphicsView,
        scene: TopologyScene,
        machine: str,
        effect: MachineEffect,
        drop: Callable[[str, list[str]], None],
    ):
        self._view = view
        self._scene = scene
        self._machine = machine
        self._effect = effect
        self._drop = drop
        self._aimed: tuple[str, tuple[str, ...]] | None = None
        self._names: list[str] = []
        self._fits = False
        self._ghost = DragPreview(scene, (), QPoint(), view.devicePixelRatioF())

    @property
    def accepts(self) -> bool:
        return self._fits

    @property
    def caption(self) -> str:
        return self._ghost.caption

    def move(self, position: QPoint) -> None:
        point = self._view.mapToScene(position)
        replica = self._scene.replica_at(point)
        host = self._scene.host_at(point)
        selection = self._scene.selection
        if replica:
            names = selection if replica in selection else [replica]
        else:
            names = self._scene.replicas_on(host) if host else selection
        self._aim(replica, host, names)
        self._ghost.move(point, position, self._view.viewport().size().toTuple())

    def _aim(self, replica: str, host: str, names: list[str]) -> None:
        aimed = (replica or host, tuple(names))
        if aimed == self._aimed:
            return
        self._aimed, self._names = aimed, names
        sentence, self._fits = self._effect(self._machine, names)
        self._ghost.say(sentence, not self._fits)
        if replica:
            self._scene.mark.aim(self._scene.rect_of(replica), fits=self._fits, slot=True)
        else:
            self._scene.set_target(host, self._fits)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self.cancel()
        if self._fits:
            self._drop(self._machine, self._names)

    def cancel(self) -> None:
        self._ghost.remove()
        self._scene.set_target(None)


ROLE_MIME = "application/x-torchyard-role"
HOST_MIME = "application/x-torchyard-host"
PRESET_MIME = "application/x-torchyard-preset"
MACHINE_MIME = "application/x-torchyard-machine"


def dragged_text(data: QMimeData, kind: str) -> str:
    """Returns the text that a drag carries under a MIME type, or "" if there is none."""
    return bytes(data.data(kind).data()).decode("utf-8", "replace") if data.hasFormat(kind) else ""
