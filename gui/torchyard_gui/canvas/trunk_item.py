"""The trunk on the scene: what trainers and servers exchange, as one line with a branch to each host."""

from __future__ import annotations

from collections.abc import Collection

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QPainter, QPainterPath, QPen
from PySide6.QtWidgets import QGraphicsItem, QGraphicsPathItem, QStyleOptionGraphicsItem, QWidget

from torchyard_gui.canvas.edges.edge_items import DASHES, PALE, REACH, rounded
from torchyard_gui.canvas.edges.routes import Branch, Trunk
from torchyard_gui.canvas.ports import paint_pill, paint_port, pill_box
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

ABOVE = 0.5
"""Its pill lies over the lines that cross it."""
THICK = 1.5
"""By how much a trunk of many edges is thicker than one of few."""


class TrunkItem(QGraphicsPathItem):
    """A path item for its bounds only, as edges are."""

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
        """`label`: what its pill says; nothing for none."""
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
        """`chosen`: hosts with a selected replica. `pale`: hosts of which nobody knows how they stand."""
        if (frozenset(chosen), frozenset(pale)) != (self._chosen, self._pale):
            self._chosen, self._pale = frozenset(chosen), frozenset(pale)
            self.update()

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(self._pen("edge"))
        painter.drawPath(self._stems())
        # Those that are chosen last: they lie over the others.
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
