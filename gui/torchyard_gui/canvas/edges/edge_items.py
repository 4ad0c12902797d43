"""Graphics items of edges: hops, which connect two racks, and trunks, which are lines that many racks share."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QPolygonF
from PySide6.QtWidgets import QGraphicsItem, QGraphicsPathItem, QStyleOptionGraphicsItem, QWidget

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.edges.gutters import Point
from torchyard_gui.canvas.edges.routes import Branch, Hop, Trunk, arrow_at
from torchyard_gui.canvas.level_of_detail import Level, level_of
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

ARROW = 7.0
DASHES = (9.0, 5.0)
"""Lengths in pixels of the dashes and gaps of dashed edges."""
THIN = 1.5
BACK_TO_BACK, SMALLER = 5.0, 0.75
PALE = 0.4
CHOSEN_ON_TOP = 1.0
REACH = QPen(Qt.GlobalColor.transparent, 2 * (ARROW + 2))
"""A transparent pen that is so wide that the bounds of an item include its ports and arrows."""


class EdgeItem(QGraphicsPathItem):
    """The graphics item of one hop. It derives from QGraphicsPathItem so that Qt computes its bounds in C++."""

    def __init__(self, hop: Hop):
        super().__init__()
        self.hop = hop
        self.label: tuple[str, ...] = ()
        self.setPen(REACH)
        self.setPath(rounded(hop.points))
        self._chosen = False
        self._pale = False
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)

    def set_hop(self, hop: Hop, label: tuple[str, ...] = ()) -> None:
        if (hop, label) != (self.hop, self.label):
            self.hop, self.label = hop, label
            path = rounded(hop.points)
            if label:
                path.addRect(pill_box(arrow_at(hop.points)[0], label))
            self.setPath(path)
            self.update()

    def set_look(self, chosen: bool, pale: bool) -> None:
        """Sets the appearance of the edge.

        Args:
            chosen: Whether a replica on a rack at one of the ends is selected.
            pale: Whether the state of a rack at one of the ends is unknown.
        """
        if (chosen, pale) != (self._chosen, self._pale):
            self._chosen, self._pale = chosen, pale
            self.setZValue(CHOSEN_ON_TOP if chosen else 0.0)
            self.update()

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        look = self.hop.look
        color = theme().color("accent" if self._chosen else "edge")
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self._pale:
            painter.setOpacity(PALE)
        width = THIN if look.thin else M.edge
        pen = QPen(color, width, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap, Qt.PenJoinStyle.RoundJoin)
        if look.dashed:
            pen.setDashPattern([length / width for length in DASHES])
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(rounded(self.hop.points))
        if look.arrows:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(color)
            for arrow in arrows(self.hop):
                painter.drawPolygon(arrow)
        painter.setOpacity(1)
        for does, at in zip(look.ports, (self.hop.points[0], self.hop.points[-1]), strict=True):
            if does:
                paint_port(painter, at, does, color)
        if self.label:
            paint_pill(painter, arrow_at(self.hop.points)[0], self.label)


def rounded(points: Sequence[Point]) -> QPainterPath:
    path = QPainterPath(QPointF(*points[0]))
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path.lineTo(_towards(corner, before, M.edge_corner))
        path.quadTo(QPointF(*corner), _towards(corner, after, M.edge_corner))
    path.lineTo(QPointF(*points[-1]))
    return path


def _towards(start: Point, end: Point, length: float) -> QPointF:
    """Returns the point at the distance `length` from `start`, but at most halfway to `end`."""
    across, down = end[0] - start[0], end[1] - start[1]
    distance = max((across**2 + down**2) ** 0.5, 1e-9)
    part = min(length / distance, 0.5)
    return QPointF(start[0] + across * part, start[1] + down * part)


def arrows(hop: Hop) -> list[QPolygonF]:
    """Returns the arrowhead of a hop or, if the hop shows both directions, two smaller arrowheads back to back."""
    place, way = arrow_at(hop.points)
    if not hop.both_ways:
        return [_arrow(place, way, 0.0, 1.0)]
    return [_arrow(place, way, BACK_TO_BACK, SMALLER), _arrow(place, (-way[0], -way[1]), BACK_TO_BACK, SMALLER)]


def _arrow(place: Point, way: Point, ahead: float, scale: float) -> QPolygonF:
    """Returns an arrowhead that points in the direction `way`, at the distance `ahead` from the point `place`."""
    (across, down), size = way, ARROW * scale
    x, y = place[0] + across * ahead, place[1] + down * ahead
    side = size * 0.75
    return QPolygonF(
        [
            QPointF(x + across * size, y + down * size),
            QPointF(x - across * size * 0.7 - down * side, y - down * size * 0.7 + across * side),
            QPointF(x - across * size * 0.7 + down * side, y - down * size * 0.7 - across * side),
        ]
    )


ABOVE = 0.5
"""The Z value of a trunk with its label. It is above hops, except for those of a selected replica."""
THICK = 1.5
"""Width in pixels that is added to the line of a trunk that represents many edges."""


class TrunkItem(QGraphicsPathItem):
    """The graphics item of a trunk with its branches. Like EdgeItem, it derives from QGraphicsPathItem."""

    def __init__(self, trunk: Trunk, label: tuple[str, ...], *, thick: bool, dashed: bool):
        super().__init__()
        self.trunk = trunk
        self.setPen(REACH)
        self.setZValue(ABOVE)
        self._chosen: frozenset[str] = frozenset()
        self._pale: frozenset[str] = frozenset()
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
        self.set_trunk(trunk, label, thick=thick, dashed=dashed)

    def set_trunk(self, trunk: Trunk, label: tuple[str, ...], *, thick: bool, dashed: bool) -> None:
        self.trunk, self.thick, self.dashed = trunk, thick, dashed
        self.label = label if trunk.is_flat else ((" · ".join(label),) if label else ())
        path = self._stems()
        for branch in trunk.branches:
            path.addPath(rounded(branch.points))
        if self.label:
            path.addRect(pill_box(trunk.label_at, self.label))
        self.setPath(path)
        self.update()

    def set_look(self, chosen: Collection[str], pale: Collection[str]) -> None:
        """Sets the appearance of the trunk and its branches.

        Args:
            chosen: Racks or sections with a selected replica.
            pale: Racks whose state is unknown.
        """
        if (frozenset(chosen), frozenset(pale)) != (self._chosen, self._pale):
            self._chosen, self._pale = frozenset(chosen), frozenset(pale)
            self.update()

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(self._pen("edge"))
        painter.drawPath(self._stems())
        # Chosen branches are painted last, because they must be above the others.
        branches = sorted(self.trunk.branches, key=lambda branch: branch.host in self._chosen)
        for branch in branches:
            painter.setOpacity(PALE if branch.host in self._pale else 1.0)
            painter.setPen(self._pen(self._token(branch)))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawPath(rounded(branch.points))
        painter.setOpacity(1)
        for branch in branches:
            paint_port(painter, branch.points[0], branch.does, theme().color(self._token(branch)))
        if self.label:
            paint_pill(painter, self.trunk.label_at, self.label)

    def _token(self, branch: Branch) -> str:
        return "accent" if branch.host in self._chosen else "edge"

    def _pen(self, token: str) -> QPen:
        width = M.edge + THICK * self.thick
        pen = QPen(theme().color(token), width)
        pen.setCapStyle(Qt.PenCapStyle.FlatCap)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        if self.dashed:
            pen.setDashPattern([length / width for length in DASHES])
        return pen

    def _stems(self) -> QPainterPath:
        path = QPainterPath()
        for start, end in self.trunk.stems:
            path.moveTo(QPointF(*start))
            path.lineTo(QPointF(*end))
        return path


PORT = 5.0
DOT = 2.0
PILL_LINE = 13.0
PILL_PAD = 7.0


def paint_port(painter: QPainter, at: Point, does: str, color: QColor) -> None:
    """Paints the port at the end of an edge. The port is opaque, so that it covers the line."""
    middle = QPointF(*at)
    painter.setPen(QPen(color, 2))
    painter.setBrush(color if does == "serves" else theme().brush("s2"))
    if does == "trains":
        painter.drawEllipse(middle, PORT, PORT)
        return
    painter.drawRoundedRect(QRectF(at[0] - PORT + 0.5, at[1] - PORT + 0.5, 2 * PORT - 1, 2 * PORT - 1), 1.5, 1.5)
    if does == "both":
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawRect(QRectF(at[0] - DOT, at[1] - DOT, 2 * DOT, 2 * DOT))


def pill_box(at: Point, lines: Sequence[str]) -> QRectF:
    width = max(paint_cache.width_of(line, "tiny") for line in lines) + 2 * PILL_PAD
    height = PILL_LINE * len(lines) + 5
    return QRectF(at[0] - width / 2, at[1] - height / 2, width, height)


def wrapped_label(text: str, width: float) -> list[str]:
    """Splits a label into lines for a pill of the given width in pixels. A word that is too long widens the pill."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and paint_cache.width_of(longer, "tiny") + 2 * PILL_PAD <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def paint_pill(painter: QPainter, at: Point, lines: Sequence[str]) -> None:
    """Paints the lines of a label in a pill around the point `at`, if they are readable at this zoom."""
    if level_of(painter.worldTransform().m11()) is not Level.FULL:
        return
    box = pill_box(at, lines)
    painter.setPen(paint_cache.outline("hair"))
    painter.setBrush(theme().brush("s1"))
    painter.drawRoundedRect(box, min(9.0, box.height() / 2), min(9.0, box.height() / 2))
    for number, line in enumerate(lines):
        x = at[0] - paint_cache.width_of(line, "tiny") / 2
        paint_cache.write(painter, x, box.y() + 13 + number * PILL_LINE, line, "text2", "tiny")
