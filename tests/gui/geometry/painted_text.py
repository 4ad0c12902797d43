"""Records all text that a widget paints, with its ink and its clip, including text that styles and delegates paint.

A widget is rendered into a QPicture. The picture is then replayed on a paint engine that records text and draws
nothing, so the window's own code needs no changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PySide6.QtCore import QPoint, QPointF, QRect, QRectF
from PySide6.QtGui import (
    QFontMetricsF,
    QPaintDevice,
    QPaintEngine,
    QPaintEngineState,
    QPainter,
    QPainterPath,
    QPicture,
    QRegion,
    QTextItem,
    QTransform,
)
from PySide6.QtWidgets import QGraphicsItem, QGraphicsView, QWidget

from torchyard_gui.bookings.calendar.calendar_painting import SnapshotCache

Dirty = QPaintEngine.DirtyFlag
LARGE = 16_000


@dataclass(frozen=True)
class PaintedText:
    """A painted piece of text, in the coordinates of its widget."""

    text: str
    ink: QRectF
    """The box around the glyphs, without the parts of the first and last letter that extend beyond their advance."""
    clip: QRectF
    """The area to which the painter was clipped."""


def painted_texts(widget: QWidget) -> list[PaintedText]:
    """Returns the text that a widget itself paints, without the text that its children paint."""
    picture = QPicture()
    with _uncached(widget):
        QWidget.render(widget, picture, QPoint(), QRegion(), QWidget.RenderFlag(0))
    recorder = _Recorder()
    device = _Device(recorder)
    painter = QPainter(device)
    picture.play(painter)
    painter.end()
    return recorder.texts


@contextmanager
def _uncached(widget: QWidget) -> Iterator[None]:
    """Makes a canvas or calendar repaint its text instead of drawing cached pixmaps."""
    draw = SnapshotCache.draw
    view = widget.parentWidget()
    items: list[tuple[QGraphicsItem, QGraphicsItem.CacheMode]] = []
    if isinstance(view, QGraphicsView) and view.scene() is not None:
        items = [(item, item.cacheMode()) for item in view.scene().items()]
    SnapshotCache.draw = lambda cache, painter, rect: cache._paint(painter, QRectF(rect))  # type: ignore[method-assign]  # The test replaces this method.
    for item, _ in items:
        item.setCacheMode(QGraphicsItem.CacheMode.NoCache)
    try:
        yield
    finally:
        SnapshotCache.draw = draw  # type: ignore[method-assign]  # The test replaces this method.
        for item, mode in items:
            item.setCacheMode(mode)


class _Recorder(QPaintEngine):
    """Records text and draws nothing."""

    def __init__(self) -> None:
        super().__init__(QPaintEngine.PaintEngineFeature.AllFeatures)
        self.texts: list[PaintedText] = []
        self._transform = QTransform()
        self._clip = QRectF(-LARGE, -LARGE, 2 * LARGE, 2 * LARGE)
        self._is_clipped = False

    def begin(self, device: QPaintDevice) -> bool:
        self.setActive(True)
        return True

    def end(self) -> bool:
        self.setActive(False)
        return True

    def type(self) -> QPaintEngine.Type:
        return QPaintEngine.Type.User

    def updateState(self, state: QPaintEngineState) -> None:
        changed = state.state()
        if changed & Dirty.DirtyTransform:
            self._transform = state.transform()
        if changed & Dirty.DirtyClipRegion:
            self._set_clip(QRectF(state.clipRegion().boundingRect()), state)
        if changed & Dirty.DirtyClipPath:
            self._set_clip(state.clipPath().boundingRect(), state)
        if changed & Dirty.DirtyClipEnabled:
            self._is_clipped = state.isClipEnabled()

    def _set_clip(self, box: QRectF, state: QPaintEngineState) -> None:
        kind = state.clipOperation().name
        mapped = self._transform.mapRect(box)
        if kind == "NoClip":
            self._clip = QRectF(-LARGE, -LARGE, 2 * LARGE, 2 * LARGE)
        elif kind == "IntersectClip":
            self._clip = self._clip.intersected(mapped)
        else:
            self._clip = mapped

    def drawTextItem(self, at: QPointF | QPoint | QPainterPath.Element, item: QTextItem) -> None:
        text = item.text()
        if not text.strip():
            return
        metrics = QFontMetricsF(item.font())
        ink = metrics.tightBoundingRect(text)
        # Layouts reserve only the advance width of text. Parts of letters such as f that extend beyond it do not count
        # as ink.
        ink.setLeft(max(ink.left(), 0.0))
        ink.setRight(min(ink.right(), metrics.horizontalAdvance(text)))
        ink.translate(QPointF(at))  # type: ignore[arg-type]  # Qt passes a point.
        clip = self._clip if self._is_clipped else QRectF(-LARGE, -LARGE, 2 * LARGE, 2 * LARGE)
        self.texts.append(PaintedText(text, self._transform.mapRect(ink), clip))

    def drawPixmap(self, *arguments: object) -> None:
        """Ignores pixmaps."""

    def drawImage(self, *arguments: object, **more: object) -> None:
        """Ignores images."""

    def drawTiledPixmap(self, *arguments: object) -> None:
        """Ignores tiles."""

    def drawPath(self, *arguments: object) -> None:
        """Ignores shapes."""

    drawPolygon = drawRects = drawLines = drawEllipse = drawPoints = drawPath


class _Device(QPaintDevice):
    """A paint device whose paint engine is a recorder."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def paintEngine(self) -> QPaintEngine:
        return self._recorder

    def metric(self, metric: QPaintDevice.PaintDeviceMetric) -> int:
        name = metric.name
        if name in ("PdmWidth", "PdmHeight"):
            return LARGE
        if "Dpi" in name:
            return 96
        if name == "PdmDevicePixelRatioScaled":
            return 1 << 16
        return 1


def text_box(rect: QRect | QRectF) -> str:
    """Formats the position and size of a rectangle for a fault's message."""
    return f"{rect.x():.0f},{rect.y():.0f} {rect.width():.0f}×{rect.height():.0f}"
