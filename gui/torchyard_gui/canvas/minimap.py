"""A small map of the whole canvas that shows which part is visible. A click or drag on it moves the view."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QGraphicsView, QWidget

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

MOST = QSizeF(196, 132)
"""Maximum size of the map in pixels, including the padding."""
PAD = 8
LARGE = 16
"""The map is hidden by default if there are at most this many racks."""
KEY_PART = 0.25
"""The fraction of the visible area by which an arrow key moves the view."""

Key = Qt.Key
STEPS = {Key.Key_Left: (-1, 0), Key.Key_Right: (1, 0), Key.Key_Up: (0, -1), Key.Key_Down: (0, 1)}


class Minimap(QWidget):
    """Map widget. By default, it is shown if there are many racks and some of them are not visible."""

    centre_asked = Signal(QPointF)
    """Emitted with the point of the scene that should be in the middle of the view."""
    left = Signal()
    """Emitted when the user presses Esc."""
    shown_changed = Signal(bool)

    def __init__(self, view: QGraphicsView, scene: TopologyScene):
        super().__init__(view)
        self._view = view
        self._scene = scene
        self._wanted: bool | None = None
        self._held: QPointF | None = None
        """Offset of the pointer from the centre of the visible part during a drag, in scene coordinates."""
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(self.tr("Minimap"))
        self.setToolTip(self.tr("Click or drag to move the view; the arrow keys do too (Ctrl+Shift+M hides it)"))
        self.hide()

    @property
    def wanted(self) -> bool | None:
        """Whether the user wants the map. None if the user has not chosen, so that the default applies."""
        return self._wanted

    def set_wanted(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self.refresh()

    def refresh(self) -> None:
        """Updates the map after a change of the scene or of its visible part. Also decides whether the map is shown."""
        content = self._scene.content_rect()
        shown = self._wanted
        if shown is None:
            shown = self._scene.rack_count > LARGE and not self._visible_part().contains(content)
        shown = shown and not content.isEmpty()
        if shown:
            size = (content.size() * self._scale(content)).toSize()
            self.resize(size.width() + 2 * PAD, size.height() + 2 * PAD)
        if not shown and self.hasFocus():
            self._view.setFocus()
        if shown == self.isHidden():
            self.setVisible(shown)
            self.shown_changed.emit(shown)
        self.update()

    def point_of(self, scene_point: QPointF) -> QPointF:
        """Returns the map position of a scene point."""
        content = self._scene.content_rect()
        return (scene_point - content.topLeft()) * self._scale(content) + QPointF(PAD, PAD)

    def visible_rect(self) -> QRectF:
        """Returns the map rectangle of the scene's visible part."""
        seen = self._visible_part().intersected(self._scene.content_rect())
        return QRectF(self.point_of(seen.topLeft()), self.point_of(seen.bottomRight()))

    def _visible_part(self) -> QRectF:
        return self._view.mapToScene(self._view.viewport().rect()).boundingRect()

    def _scale(self, content: QRectF) -> float:
        return min((MOST.width() - 2 * PAD) / content.width(), (MOST.height() - 2 * PAD) / content.height())

    def _scene_point(self, at: QPointF) -> QPointF:
        content = self._scene.content_rect()
        return (at - QPointF(PAD, PAD)) / self._scale(content) + content.topLeft()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        point, middle = self._scene_point(event.position()), self._visible_part().center()
        inside = self.visible_rect().contains(event.position())
        self._held = point - middle if inside else QPointF()
        self._move(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._held is not None:
            self._move(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._held = None

    def _move(self, event: QMouseEvent) -> None:
        assert self._held is not None
        self.centre_asked.emit(self._scene_point(event.position()) - self._held)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = STEPS.get(Key(event.key()))
        if step is not None and not event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier:
            seen = self._visible_part()
            by = QPointF(step[0] * seen.width() * KEY_PART, step[1] * seen.height() * KEY_PART)
            self.centre_asked.emit(seen.center() + by)
        elif event.key() == Key.Key_Escape:
            self.left.emit()
        else:
            event.ignore()  # The view handles all other keys, such as those that zoom.

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        content = self._scene.content_rect()
        if content.isEmpty():
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        frame = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.setPen(theme().pen("accent", 2) if self.hasFocus() else theme().pen("hair"))
        painter.setBrush(theme().brush("s1"))
        painter.drawRoundedRect(frame, M.radius, M.radius)
        painter.setPen(Qt.PenStyle.NoPen)
        scale = self._scale(content)
        left, top = content.left(), content.top()
        for box, token in self._scene.rack_boxes():
            place = QRectF(
                PAD + (box.x - left) * scale,
                PAD + (box.y - top) * scale,
                max(box.width * scale, 1.5),
                max(box.height * scale, 1.5),
            )
            painter.fillRect(place, theme().brush(token))
        painter.setPen(paint_cache.outline("accent", 1.5))
        painter.setBrush(theme().color("accent", 0.14))
        painter.drawRoundedRect(self.visible_rect(), 2, 2)
        painter.end()
