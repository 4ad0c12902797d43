"""The layer of edges: what the scene draws between racks, an edge for each hop or a trunk."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtWidgets import QGraphicsItem

from torchyard_gui.canvas import labels
from torchyard_gui.canvas.edges.edge_items import EdgeItem, TrunkItem
from torchyard_gui.canvas.edges.routes import Hop, arrow_at
from torchyard_gui.canvas.edges.traffic import Lines, Wiring, lay
from torchyard_gui.canvas.racks.layout import Grid


class EdgeLayer:
    """`lay` draws what wiring says between racks as they stand; `show_looks` says which ends are of interest."""

    def __init__(self, layer: QGraphicsItem):
        self._layer = layer
        self._edges: list[EdgeItem] = []
        self._trunk: TrunkItem | None = None
        self._laid: tuple[Grid, Wiring, Lines] = (Grid(1), Wiring(), Lines())
        """The last lines, and what they were laid for: an edit mostly moves no rack."""

    @property
    def items(self) -> list[QGraphicsItem]:
        """All that is drawn."""
        return [*self._edges, *([self._trunk] if self._trunk is not None else [])]

    def lay(self, grid: Grid, wiring: Wiring) -> None:
        """Edges and trunk for racks that stand so; items that are there are used again."""
        if (grid, wiring) != self._laid[:2]:
            self._laid = grid, wiring, lay(grid, wiring)
        lines = self._laid[2]
        labelled = _labelled(lines.hops) if wiring.neighbours else None
        for edge in self._edges[len(lines.hops) :]:
            self._remove(edge)
        del self._edges[len(lines.hops) :]
        for hop in lines.hops[len(self._edges) :]:
            edge = EdgeItem(hop)
            edge.setParentItem(self._layer)
            self._edges.append(edge)
        for edge, hop in zip(self._edges, lines.hops, strict=True):
            edge.set_hop(hop, wiring.label if hop is labelled else ())
        self._lay_trunk(wiring, lines)

    def show_looks(self, chosen: Collection[str], unknown: Collection[str]) -> None:
        """`chosen`: hosts with a selected replica. `unknown`: hosts of which nobody knows how they stand."""
        for edge in self._edges:
            ends = (edge.hop.source, edge.hop.target)
            edge.set_look(any(end in chosen for end in ends), any(end in unknown for end in ends))
        if self._trunk is not None:
            self._trunk.set_look(chosen, unknown)

    def set_visible(self, visible: bool) -> None:
        self._layer.setVisible(visible)

    def _lay_trunk(self, wiring: Wiring, lines: Lines) -> None:
        if lines.trunk is None:
            if self._trunk is not None:
                self._remove(self._trunk)
                self._trunk = None
            return
        label = (*wiring.label, labels.edges(wiring.count)) if wiring.count else wiring.label
        how = {"thick": bool(wiring.count), "dashed": not wiring.in_step}
        if self._trunk is None:
            self._trunk = TrunkItem(lines.trunk, label, **how)
            self._trunk.setParentItem(self._layer)
        else:
            self._trunk.set_trunk(lines.trunk, label, **how)

    def _remove(self, item: QGraphicsItem) -> None:
        self._layer.scene().removeItem(item)


def _labelled(hops: Sequence[Hop]) -> Hop | None:
    """The hop that a pill has most room on: it lies across rather than up and down, and is a neighbour's."""
    exchanging = [hop for hop in hops if not hop.look.thin]
    return max(exchanging, key=lambda hop: abs(arrow_at(hop.points)[1][0]), default=None)
