"""The view of a topology's scene, with input by mouse, keyboard and drops. User requests are emitted as signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QFocusEvent,
    QKeyEvent,
    QMouseEvent,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QWidget

from torchyard_gui.canvas.gestures.drag_chips import DragChips, Effect, Fits
from torchyard_gui.canvas.gestures.palette_drop import (
    HOST_MIME,
    MACHINE_MIME,
    PRESET_MIME,
    ROLE_MIME,
    DropMachine,
    DropRole,
    MachineEffect,
    dragged_text,
)
from torchyard_gui.canvas.gestures.rubber_band import RubberBand
from torchyard_gui.canvas.keyboard import ARROWS, command_of, neighbour
from torchyard_gui.canvas.racks.layout import MARGIN
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.zoom_view import ZoomView
from torchyard_gui.widgets.gesture import Gesture

Button, Modifier = Qt.MouseButton, Qt.KeyboardModifier

SCROLL_WITHIN = 20
"""Distance in pixels from the border within which a drag scrolls the view."""


class Pan(Gesture):
    """Gesture that scrolls the view with the middle button, or with the left button while Space is held."""

    cursor = Qt.CursorShape.ClosedHandCursor

    def __init__(self, view: QAbstractScrollArea, position: QPoint):
        self._across = view.horizontalScrollBar()
        self._down = view.verticalScrollBar()
        self._origin = QPoint(self._across.value(), self._down.value())
        self._start = position

    def move(self, position: QPoint) -> None:
        moved = position - self._start
        self._across.setValue(self._origin.x() - moved.x())
        self._down.setValue(self._origin.y() - moved.y())

    def finish(self, position: QPoint) -> None:
        self.move(position)

    def cancel(self) -> None:
        self.move(self._start)


class CanvasView(ZoomView):
    """View of a `TopologyScene`."""

    pin_requested = Signal(list, str)
    """Emitted with the replicas to pin and a target: "gpu-b:2", "gpu-b", or "" to let the planner choose the GPUs."""
    regroup_requested = Signal(list, str)
    """Emitted with the replicas to regroup and a target: "trainers:1", "trainers:1/worker-5", or "" for a new group."""
    role_dropped = Signal(str, str)
    """Emitted with a dropped role and its target host; the host is "" if the role was dropped outside all racks."""
    host_dropped = Signal(str)
    preset_dropped = Signal(str)
    """Emitted with the key of a preset."""
    machine_dropped = Signal(str, list)
    """Emitted with a machine type and replicas. The machine type should be applied to the pools of these replicas."""
    activated = Signal(str)
    """Emitted with a replica on which the user double-clicked or pressed Enter."""
    delete_requested = Signal(list)
    context_requested = Signal(QPoint)
    """Emitted with the screen position at which a menu for the selection should open."""

    def __init__(self, scene: TopologyScene, parent: QWidget | None = None):
        super().__init__(scene, parent)
        self.fits: Fits = lambda names, target: ""
        """Returns the reason why replicas cannot be moved to a target, or ""; set by the page."""
        self.group_fits: Fits = lambda names, target: ""
        """Returns the reason why replicas cannot be moved to another group, or ""; set by the page."""
        self.group_effect: Effect = lambda names, target: ""
        """Returns what a move to another group does, or ""; set by the page."""
        self.role_fits: Callable[[str, str], str] = lambda role, host: ""
        """Returns the reason why a new replica of a role cannot be placed on a host, or ""; set by the page."""
        self.machine_effect: MachineEffect = lambda machine, names: ("", bool(names))
        """Returns a sentence about the effect of a machine type on the pools of replicas, and whether the type can be
        applied; set by the page.
        """
        self._gesture: Gesture | None = None
        self._drop: DropRole | DropMachine | None = None
        self._editable = True
        self._space_held = False
        self._inner = QRect()
        """Area within which a drag does not scroll the view."""
        self._cursor: Qt.CursorShape | None = None
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAcceptDrops(True)
        self.viewport().setMouseTracking(True)
        self.setAccessibleName(self.tr("Cluster"))
        self.viewport().setAccessibleName(self.accessibleName())
        scene.states_changed.connect(self._describe)

    def set_editable(self, editable: bool) -> None:
        """Sets whether the topology can be edited: whether chips can be dragged and deleted, and palette entries
        dropped.
        """
        self._editable = editable
        self.setAcceptDrops(editable)

    @property
    def gesture(self) -> Gesture | None:
        return self._gesture

    def show_replica(self, name: str) -> None:
        """Selects a replica and scrolls to it. A low zoom is reset to full size to make the chip readable."""
        self._canvas.set_selection([name])
        self._canvas.set_focused(name)
        rect = self._canvas.rect_of(name)
        if rect.isNull():
            return
        self._follows = False
        if self.zoom < 0.7:
            self._zoom_to(1.0)
            rect = self._canvas.rect_of(name)
        seen = self.mapToScene(self.viewport().rect()).boundingRect()
        if not seen.contains(rect):
            self.centerOn(rect.center())

    def show_replicas(self, names: Sequence[str]) -> None:
        """Scrolls to the first of the named replicas, unless one of them is already visible. If only one replica is
        named, it is also selected.
        """
        if len(names) == 1:
            self.show_replica(names[0])
            return
        rects = [rect for name in names if not (rect := self._canvas.rect_of(name)).isNull()]
        seen = self.mapToScene(self.viewport().rect()).boundingRect()
        if rects and not any(seen.contains(rect) for rect in rects):
            self._follows = False
            self.centerOn(rects[0].center())

    def show_rack(self, host: str) -> bool:
        """Scrolls to a host and highlights it briefly. Returns whether the host is drawn."""
        rect = self._canvas.rect_of_rack(host)
        if rect.isNull():
            return False
        seen = self.mapToScene(self.viewport().rect()).boundingRect()
        if not seen.contains(rect):
            self._follows = False
            self.centerOn(rect.center())
        self._canvas.mark.point_out(host, rect)
        return True

    def select_all(self) -> None:
        self._canvas.set_selection(self._canvas.names)

    def request_delete(self) -> None:
        if self._editable and self._canvas.selection:
            self.delete_requested.emit(self._canvas.selection)

    def activate(self) -> None:
        """Emits `activated` for the replica with the keyboard focus or, if there is none, for the first selected
        replica.
        """
        name = self._canvas.focused or next(iter(self._canvas.selection), "")
        if name:
            self.activated.emit(name)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        edge = SCROLL_WITHIN
        self._inner = self.viewport().rect().adjusted(edge, edge, -edge, -edge)

    def wheelEvent(self, event: QWheelEvent) -> None:
        super().wheelEvent(event)
        if self._gesture is not None:
            # The wheel has moved the scene, so a different point is now under the pointer.
            self._gesture.move(event.position().toPoint())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        position, held = event.position().toPoint(), event.modifiers()
        if self._gesture is not None:
            return
        self._canvas.set_focused("")
        if event.button() == Button.MiddleButton or (event.button() == Button.LeftButton and self._space_held):
            self._follows = False
            self._begin(Pan(self, position))
        elif event.button() == Button.LeftButton:
            name = self._canvas.replica_at(self.mapToScene(position))
            if not name:
                keep = bool(held & (Modifier.ControlModifier | Modifier.ShiftModifier))
                self._begin(RubberBand(self, self._canvas, position, keep))
                return
            if held & Modifier.ControlModifier:
                self._toggle(name)
                return
            selection = self._canvas.selection
            if name not in selection:
                self._canvas.set_selection([*selection, name] if held & Modifier.ShiftModifier else [name])
            self._begin(self._drag(name, position))

    def _drag(self, name: str, position: QPoint) -> DragChips:
        if self._canvas.by_group:
            fits, drop, effect = self.group_fits, self.regroup_requested.emit, self.group_effect
        else:
            fits, drop, effect = self.fits, self.pin_requested.emit, None
        return DragChips(self, self._canvas, name, position, fits if self._editable else None, drop, effect)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        position = event.position().toPoint()
        if self._gesture is None:
            self._canvas.set_hovered(self._canvas.replica_at(self.mapToScene(position)))
            return
        if not self._inner.contains(position):
            self._scroll_along(position)
        self._gesture.move(position)
        if self._cursor is None:  # During a gesture, the cursor changes its shape only once: when the drag begins.
            self._show_cursor()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        gesture = self._gesture
        if gesture is None or event.buttons() & (Button.LeftButton | Button.MiddleButton):
            return
        self._gesture = None
        gesture.finish(event.position().toPoint())
        self._show_cursor()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        name = self._canvas.replica_at(self.mapToScene(event.position().toPoint()))
        if event.button() == Button.LeftButton and name and not event.modifiers():
            self.activated.emit(name)
        else:
            self.mousePressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        if self._gesture is not None:
            return
        if event.reason() == QContextMenuEvent.Reason.Keyboard:
            rect = self._canvas.rect_of(self._canvas.focused or next(iter(self._canvas.selection), ""))
            at = self.mapFromScene(rect.center()) if not rect.isNull() else self.viewport().rect().center()
            self.context_requested.emit(self.viewport().mapToGlobal(at))
            return
        name = self._canvas.replica_at(self.mapToScene(event.pos()))
        if name not in self._canvas.selection:
            self._canvas.set_selection([name] if name else [])
        self.context_requested.emit(event.globalPos())

    def leaveEvent(self, event: QEvent) -> None:
        self._canvas.set_hovered("")
        super().leaveEvent(event)

    def _begin(self, gesture: Gesture) -> None:
        self._gesture = gesture
        self._canvas.set_hovered("")
        if isinstance(gesture, Pan):
            self._show_cursor()

    def cancel_gesture(self) -> bool:
        """Cancels the gesture in progress. Returns whether a gesture was in progress."""
        gesture, self._gesture = self._gesture, None
        if gesture is not None:
            gesture.cancel()
            self._show_cursor()
        return gesture is not None

    def _toggle(self, name: str) -> None:
        selection = self._canvas.selection
        self._canvas.set_selection([*selection, name] if name not in selection else set(selection) - {name})

    def _scroll_along(self, position: QPoint) -> None:
        across, down = _beyond(position.x(), self.viewport().width()), _beyond(position.y(), self.viewport().height())
        carries = isinstance(self._gesture, DragChips) and self._gesture.is_carrying
        if carries or isinstance(self._gesture, RubberBand):
            self._follows = False
            self.horizontalScrollBar().setValue(self.horizontalScrollBar().value() + across)
            self.verticalScrollBar().setValue(self.verticalScrollBar().value() + down)

    def _show_cursor(self) -> None:
        gesture = self._gesture
        carries = not isinstance(gesture, DragChips) or gesture.is_carrying
        cursor = Qt.CursorShape.OpenHandCursor if self._space_held else None
        if gesture is not None and gesture.cursor is not None and carries:
            cursor = gesture.cursor
        if cursor == self._cursor:
            return
        self._cursor = cursor
        if cursor is None:
            self.viewport().unsetCursor()
        else:
            self.viewport().setCursor(cursor)

    # The next five methods handle drags from the palette.

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        data = event.mimeData()
        role, machine = dragged_text(data, ROLE_MIME), dragged_text(data, MACHINE_MIME)
        if not self._editable or not (
            role or machine or dragged_text(data, HOST_MIME) or dragged_text(data, PRESET_MIME)
        ):
            event.ignore()
            return
        self._end_drop()
        if role:
            self._drop = DropRole(self, self._canvas, role, self.role_fits, self.role_dropped.emit)
        elif machine:
            self._drop = DropMachine(self, self._canvas, machine, self.machine_effect, self.machine_dropped.emit)
        event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        if self._drop is not None:
            self._drop.move(event.position().toPoint())
            if not self._drop.accepts:
                event.ignore()
                return
        event.acceptProposedAction()

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self._end_drop()

    def dropEvent(self, event: QDropEvent) -> None:
        drop, self._drop = self._drop, None
        if drop is not None:
            drop.finish(event.position().toPoint())
        elif host := dragged_text(event.mimeData(), HOST_MIME):
            self.host_dropped.emit(host)
        elif preset := dragged_text(event.mimeData(), PRESET_MIME):
            self.preset_dropped.emit(preset)
        event.acceptProposedAction()

    def _end_drop(self) -> None:
        drop, self._drop = self._drop, None
        if drop is not None:
            drop.cancel()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = event.key()
        if key == Qt.Key.Key_Escape:
            if self.cancel_gesture():
                return
            if self._canvas.selection:
                self._canvas.set_selection([])
                self._canvas.set_focused("")
                return
            event.ignore()
        elif key == Qt.Key.Key_Space and not event.modifiers():
            self._space_held = True
            self._show_cursor()
        elif key in ARROWS and not event.modifiers() & ~(Modifier.ShiftModifier | Modifier.KeypadModifier):
            self._step(key, bool(event.modifiers() & Modifier.ShiftModifier))
        elif command := command_of(event):
            getattr(self, command)()
        else:
            # For other keys, the base class is not called, because QGraphicsView would scroll.
            event.ignore()

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Space and not event.isAutoRepeat():
            self._space_held = False
            self._show_cursor()
        else:
            event.ignore()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self._space_held = False
        self._canvas.set_focused("")
        super().focusOutEvent(event)

    def _step(self, key: int, extend: bool) -> None:
        """Moves the keyboard focus to the neighbouring chip and selects it, or with Shift adds it to the selection."""
        boxes = self._canvas.chip_boxes()
        start = self._canvas.focused or next(reversed(self._canvas.selection), "")
        if not boxes:
            return
        name = next(iter(boxes)) if start not in boxes else neighbour(boxes, start, ARROWS[key]) or start
        self._canvas.set_focused(name)
        self._canvas.set_selection([*self._canvas.selection, name] if extend else [name])
        seen = self.mapToScene(self.viewport().rect()).boundingRect()
        if not seen.contains(QRectF(*boxes[name])):
            self._follows = False
            self.ensureVisible(QRectF(*boxes[name]), MARGIN, MARGIN)

    def _describe(self) -> None:
        selection = self._canvas.selection
        if len(selection) == 1:
            text = self._canvas.described(selection[0])
        elif selection:
            text = self.tr("{count} replicas selected").format(count=len(selection))
        else:
            text = ""
        if text != self.accessibleDescription():
            # This import is slow and must not delay the first paint.
            from PySide6.QtGui import QAccessible, QAccessibleEvent

            self.setAccessibleDescription(text)
            if QAccessible.isActive():
                QAccessible.updateAccessibility(QAccessibleEvent(self, QAccessible.Event.DescriptionChanged))


def _beyond(at: int, length: int) -> int:
    """Returns how far a position lies inside the border area in which a drag scrolls the view. The value is negative at
    the left or top border, and 0 outside the border area.
    """
    if length <= 2 * SCROLL_WITHIN:
        return 0
    return min(at - SCROLL_WITHIN, 0) + max(at - length + SCROLL_WITHIN, 0)
