"""The base class of the canvas view, with zoom, scrolling, background and overlays."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import QBrush, QInputDevice, QPainter, QPixmap, QPixmapCache, QResizeEvent, QTransform, QWheelEvent
from PySide6.QtWidgets import QFrame, QGraphicsView, QWidget

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.legend import Legend, entries_of
from torchyard_gui.canvas.level_of_detail import ZOOM_LEAST, ZOOM_MOST, Level, level_of
from torchyard_gui.canvas.minimap import Minimap
from torchyard_gui.canvas.racks.layout import MARGIN
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.zoom_bar import ZoomBar
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

Modifier = Qt.KeyboardModifier

STEP = 1.2
"""The factor by which a notch of the wheel or a press of a zoom button changes the zoom."""
BELOW = 52
"""Space in pixels below the racks for the zoom buttons."""
EDGE = 12
"""Distance in pixels between overlays and the border of the view."""
LEGEND_GAP = 6
"""Distance in pixels between the racks and a legend that has several rows."""
PICTURES_KB = 96 * 1024
"""Minimum size in KiB of the pixmap cache for racks; Qt's default of 10 MB is too small for a large screen."""


class ZoomView(QGraphicsView):
    """A view in which the wheel zooms at the pointer. All racks stay visible until the user scrolls or zooms."""

    zoom_changed = Signal(float)

    def __init__(self, scene: TopologyScene, parent: QWidget | None = None):
        super().__init__(scene, parent)
        self._canvas = scene
        self._follows = True
        self._empty = ("", "")
        self._was_empty = True
        self._picture: QPixmap | None = None
        self._room = QSizeF()
        QPixmapCache.setCacheLimit(max(QPixmapCache.cacheLimit(), PICTURES_KB))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setTransformationAnchor(QGraphicsView.ViewportAnchor.NoAnchor)
        self.setResizeAnchor(QGraphicsView.ViewportAnchor.NoAnchor)
        self.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.setOptimizationFlag(QGraphicsView.OptimizationFlag.DontSavePainterState)
        self.setOptimizationFlag(QGraphicsView.OptimizationFlag.DontAdjustForAntialiasing)
        self.setCacheMode(QGraphicsView.CacheModeFlag.CacheBackground)
        # This mode repaints one rectangle that contains all changes. It is the fastest mode during drags.
        self.setViewportUpdateMode(QGraphicsView.ViewportUpdateMode.BoundingRectViewportUpdate)
        self.set_empty_text(
            self.tr("Nothing drawn yet"),
            self.tr("Drag a role from the left onto this canvas, or press A and type what to add."),
        )
        self._bar = ZoomBar(self)
        self._legend = Legend(self)
        self.minimap = Minimap(self, scene)
        self.minimap.centre_asked.connect(self._centre)
        self.minimap.left.connect(self.setFocus)
        self.minimap.shown_changed.connect(self._place_minimap)
        self._bar.out_asked.connect(self.zoom_out)
        self._bar.in_asked.connect(self.zoom_in)
        self._bar.reset_asked.connect(self.reset)
        self._bar.fit_asked.connect(self.fit)
        scene.arranged.connect(self._take_arrangement)
        scene.states_changed.connect(self._show_legend)
        scene.states_changed.connect(self.minimap.update)
        scene.traffic_changed.connect(self._show_legend)
        theme().changed.connect(self._take_theme)

    @property
    def zoom(self) -> float:
        return self.transform().m11()

    def zoom_in(self) -> None:
        self.set_zoom(self.zoom * STEP)

    def zoom_out(self) -> None:
        self.set_zoom(self.zoom / STEP)

    def reset(self) -> None:
        """Sets the zoom to 100%."""
        self.set_zoom(1.0)

    def set_zoom(self, zoom: float, anchor: QPointF | None = None) -> None:
        """Sets the zoom. The point at `anchor` keeps its position; by default, this is the middle of the viewport."""
        self._follows = False
        self._zoom_to(zoom, anchor)

    def fit(self) -> None:
        """Fits the scene into the view, at full size at most. Until the user scrolls or zooms, the scene is also fitted
        again when the racks or the view's size change.
        """
        self._follows = True
        below = self._below()
        self._canvas.set_room(QSizeF(self._room.width(), self._room.height() - below + MARGIN))
        content = self._canvas.content_rect()
        if content.isEmpty():
            self._zoom_to(1.0)
            return
        size = self.viewport().size()
        across = (size.width() - 2 * MARGIN) / content.width()
        down = (size.height() - MARGIN - below) / content.height()
        self._zoom_to(min(across, down, 1.0))
        zoom = self.zoom
        left = (size.width() - content.width() * zoom) / 2
        top = max(min((size.height() - content.height() * zoom) / 2, MARGIN), 0)
        corner = self.transform().map(content.topLeft())
        self.horizontalScrollBar().setValue(round(corner.x() - left))
        self.verticalScrollBar().setValue(round(corner.y() - top))

    def _zoom_to(self, zoom: float, anchor: QPointF | None = None) -> None:
        zoom = min(max(zoom, ZOOM_LEAST), ZOOM_MOST)
        # A zoom that is almost but not exactly full size would blur the content.
        zoom = 1.0 if abs(zoom - 1) < 0.03 else zoom
        at = anchor if anchor is not None else QPointF(self.viewport().rect().center())
        held = self.transform().inverted()[0].map(at + self._scrolled())
        if zoom != self.zoom:
            self.setTransform(QTransform.fromScale(zoom, zoom))
            self._canvas.set_zoom(zoom)
            self._bar.show_zoom(zoom)
            self._show_legend()
            self._refresh_minimap()
            self.zoom_changed.emit(zoom)
        self._give_way()
        now = QPointF(held.x() * zoom, held.y() * zoom) - at
        self.horizontalScrollBar().setValue(round(now.x()))
        self.verticalScrollBar().setValue(round(now.y()))

    def _centre(self, point: QPointF) -> None:
        self._follows = False
        self.centerOn(point)

    def _refresh_minimap(self) -> None:
        self.minimap.refresh()
        self._place_minimap()

    def _place_minimap(self) -> None:
        """Places the map in the lower right corner, or above the legend if the two would overlap."""
        map_, below = self.minimap, EDGE
        if self._legend.isVisible() and self._legend.geometry().right() > self.width() - map_.width() - 2 * EDGE:
            below = self.height() - min(self._legend.y(), self._bar.y()) + EDGE
        map_.move(self.width() - map_.width() - EDGE, self.height() - map_.height() - below)

    def _scrolled(self) -> QPointF:
        return QPointF(self.horizontalScrollBar().value(), self.verticalScrollBar().value())

    def _give_way(self) -> None:
        """Sets the scroll range. The racks can be scrolled to every border of the view, but never fully out of it."""
        content = self._canvas.content_rect()
        across = max(self.viewport().width() / self.zoom - 80, 80)
        down = max(self.viewport().height() / self.zoom - 80, 80)
        rect = content.adjusted(-across, -down, across, down)
        if rect != self.sceneRect():
            self._canvas.setSceneRect(rect)
            self.setSceneRect(rect)

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self._canvas.touched.emit()
        super().scrollContentsBy(dx, dy)
        self._refresh_minimap()

    def _below(self) -> int:
        """Returns the height at the bottom of the view that the buttons and the legend cover."""
        return BELOW if self._legend.isHidden() else max(BELOW, self.height() - self._legend.y() + LEGEND_GAP)

    def _take_arrangement(self) -> None:
        self._show_legend()
        if self._follows and not (self._canvas.keeps and self._shows_all()):
            self.fit()
        else:
            self._zoom_to(self.zoom)
        self._show_legend()
        self._refresh_minimap()
        if self._canvas.is_empty != self._was_empty:
            self._was_empty = self._canvas.is_empty
            self._repaint_background()

    def _shows_all(self) -> bool:
        """Returns whether everything is already visible above the buttons and the legend, so that there is no need to
        fit the scene into the view again.
        """
        room = self.viewport().rect().adjusted(0, 0, 0, BELOW // 2 - self._below())
        return not self._was_empty and self.mapToScene(room).boundingRect().contains(self._canvas.content_rect())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._room = QSizeF(self.viewport().size())
        height = self.height()
        self._bar.move(EDGE, height - self._bar.height() - EDGE)
        left = self._bar.geometry().right() + EDGE
        self._legend.move(left, height - self._bar.height() // 2 + 2 - self._legend.height())
        self._legend.set_limit(self.width() - left - EDGE)
        if self._follows:
            self.fit()
        else:
            self._give_way()
        self._refresh_minimap()

    def wheelEvent(self, event: QWheelEvent) -> None:
        touch = event.device().type() == QInputDevice.DeviceType.TouchPad
        held = event.modifiers()
        if (touch and not held & Modifier.ControlModifier) or held & Modifier.ShiftModifier:
            delta = event.pixelDelta() if touch and not event.pixelDelta().isNull() else event.angleDelta()
            across, down = delta.x(), delta.y()
            if held & Modifier.ShiftModifier and not across:
                across, down = down, 0
            self._follows = False
            self.horizontalScrollBar().setValue(self.horizontalScrollBar().value() - across)
            self.verticalScrollBar().setValue(self.verticalScrollBar().value() - down)
        else:
            notches = event.angleDelta().y() / 120
            self.set_zoom(self.zoom * STEP**notches, event.position())
        event.accept()

    @property
    def empty_texts(self) -> tuple[str, str]:
        """The title and the sentence on the empty canvas."""
        return self._empty

    def set_empty_text(self, title: str, sentence: str) -> None:
        if (title, sentence) != self._empty:
            self._empty = (title, sentence)
            self._repaint_background()

    @property
    def legend_texts(self) -> list[str]:
        return self._legend.texts

    def _show_legend(self) -> None:
        tiles = level_of(self.zoom) is Level.TILE
        if tiles and self._canvas.is_live:
            self._legend.explain(None)
        else:
            self._legend.explain(entries_of(self._canvas.drawn_wiring))

    def drawBackground(self, painter: QPainter, rect: QRectF | QRect) -> None:
        # Qt caches the background (CacheBackground), so this Python code does not run for each frame of a drag.
        if self._picture is not None:
            painter.save()
            painter.resetTransform()
            painter.drawPixmap(0, 0, self._picture)
            painter.restore()
            return
        paint_dots(painter, QRectF(rect), self.zoom)
        if self._canvas.is_empty:
            paint_empty(painter, QRectF(self.viewport().rect()), *self._empty)

    def show_snapshot(self, picture: QPixmap | None) -> None:
        """Paints a pixmap of the viewport as the background. None restores the dots."""
        self._picture = picture
        self._repaint_background()

    def _repaint_background(self) -> None:
        self.resetCachedContent()
        self.viewport().update()

    def _take_theme(self) -> None:
        self._repaint_background()
        self._bar.update()
        self._legend.update()
        self.minimap.update()


NO_DOTS_BELOW = 0.4

_tiles: dict[tuple[str, int], QBrush] = {}


def paint_dots(painter: QPainter, rect: QRectF, zoom: float) -> None:
    """Paints a grid of dots. The dots are 24 units apart in the scene, and have a constant size on the screen.

    At a low zoom, no dots are painted.
    """
    painter.fillRect(rect, theme().brush("s0"))
    if zoom < NO_DOTS_BELOW:
        return
    step = round(M.grid * zoom)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, False)
    # The dots are painted for the current zoom, because scaling a picture of them would distort them.
    painter.scale(M.grid / step, M.grid / step)
    back = step / M.grid
    area = QRectF(rect.x() * back, rect.y() * back, rect.width() * back, rect.height() * back)
    painter.fillRect(area, _dots(step))
    painter.restore()


def _dots(step: int) -> QBrush:
    key = (theme().color("dot").name(), step)
    brush = _tiles.get(key)
    if brush is None:
        if len(_tiles) > 64:
            _tiles.clear()
        tile = QPixmap(step, step)
        tile.fill(theme().color("s0"))
        painter = QPainter(tile)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().brush("dot"))
        painter.drawEllipse(QPointF(step / 2, step / 2), 1.2, 1.2)
        painter.end()
        brush = _tiles[key] = QBrush(tile)
    return brush


def paint_empty(painter: QPainter, area: QRectF, title: str, sentence: str) -> None:
    """Paints a title and a sentence in the middle of the view."""
    painter.save()
    painter.resetTransform()
    middle = area.center()
    painter.setPen(theme().color("text"))
    painter.setFont(paint_cache.font("title"))
    painter.drawText(QRectF(0, middle.y() - 30, area.width(), 24), Qt.AlignmentFlag.AlignCenter, title)
    painter.setPen(theme().color("text2"))
    painter.setFont(paint_cache.font("body"))
    width = min(520.0, area.width() - 40)
    room = QRectF(middle.x() - width / 2, middle.y() - 2, width, area.height() / 2)
    flags = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop | Qt.TextFlag.TextWordWrap
    painter.drawText(room, flags, sentence)
    painter.restore()
