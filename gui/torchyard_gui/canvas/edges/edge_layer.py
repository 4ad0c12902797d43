"""The layer of edges between racks, with one item per hop and one for the trunk."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtWidgets import QGraphicsItem

from torchyard_gui.canvas import labels
from torchyard_gui.canvas.edges.edge_items import EdgeItem, TrunkItem, wrapped_label
from torchyard_gui.canvas.edges.routes import Hop, arrow_at
from torchyard_gui.canvas.edges.traffic import HostTraffic, Lines, lay, scaled
from torchyard_gui.canvas.racks.layout import Grid
from torchyard_gui.theme.tokens import METRICS as M


class EdgeLayer:
    """Routes the edges between racks (`lay`), and marks those that end at selected or unknown hosts (`show_looks`)."""

    def __init__(self, layer: QGraphicsItem):
        self._layer = layer
        self._edges: list[EdgeItem] = []
        self._trunk: TrunkItem | None = None
        self._laid: list[tuple[Grid, HostTraffic, Lines]] = []
        """The inputs and results of the last two routings. Most edits move no rack, so the results can be reused."""

    @property
    def items(self) -> list[QGraphicsItem]:
        return [*self._edges, *([self._trunk] if self._trunk is not None else [])]

    def lay(self, grid: Grid, wiring: HostTraffic, scale: float = 1.0) -> None:
        """Routes the edges and the trunk for a grid of racks or sections. Existing items are reused.

        Args:
            scale: The zoom of the view if lines and labels have a constant size on the screen; 1 if their size follows
                the zoom.
        """
        lines = self._routed(grid, wiring)
        if scale != 1.0:
            lines = scaled(lines, scale)
        self._layer.setScale(1 / scale)
        labelled = _labelled(lines.hops)
        label = _label_at(labelled, wiring) if labelled is not None else ()
        for edge in self._edges[len(lines.hops) :]:
            self._remove(edge)
        del self._edges[len(lines.hops) :]
        for hop in lines.hops[len(self._edges) :]:
            edge = EdgeItem(hop)
            edge.setParentItem(self._layer)
            self._edges.append(edge)
        for edge, hop in zip(self._edges, lines.hops, strict=True):
            edge.set_hop(hop, label if hop is labelled else ())
        self._lay_trunk(wiring, lines)

    def show_looks(self, chosen: Collection[str], unknown: Collection[str]) -> None:
        """Sets the appearance of all edges.

        Args:
            chosen: Racks or sections with a selected replica.
            unknown: Racks whose state is unknown.
        """
        for edge in self._edges:
            ends = (edge.hop.source, edge.hop.target)
            edge.set_look(any(end in chosen for end in ends), any(end in unknown for end in ends))
        if self._trunk is not None:
            self._trunk.set_look(chosen, unknown)

    def _routed(self, grid: Grid, wiring: HostTraffic) -> Lines:
        for old_grid, old_wiring, lines in self._laid:
            if (old_grid, old_wiring) == (grid, wiring):
                return lines
        lines = lay(grid, wiring)
        self._laid = [*self._laid, (grid, wiring, lines)][-2:]
        return lines

    def _lay_trunk(self, wiring: HostTraffic, lines: Lines) -> None:
        if lines.trunk is None:
            if self._trunk is not None:
                self._remove(self._trunk)
                self._trunk = None
            return
        load = wiring.load if lines.trunk.is_flat else (" ".join(wiring.load),) if wiring.load else ()
        label = (*wiring.label, *load, *([labels.edges(wiring.count)] if wiring.count else []))
        how = {"thick": bool(wiring.count), "dashed": not wiring.in_step}
        if self._trunk is None:
            self._trunk = TrunkItem(lines.trunk, label, **how)
            self._trunk.setParentItem(self._layer)
        else:
            self._trunk.set_trunk(lines.trunk, label, **how)

    def _remove(self, item: QGraphicsItem) -> None:
        self._layer.scene().removeItem(item)


def _label_at(hop: Hop, wiring: HostTraffic) -> tuple[str, ...]:
    """Returns the lines of a hop's label: several short lines in a gutter between columns, a single line elsewhere."""
    label = wiring.label if wiring.neighbours or wiring.average else ()
    is_across = bool(arrow_at(hop.points)[1][0])
    is_straight = len(hop.points) == 2
    if is_across != is_straight:
        line = " · ".join(filter(None, (*label, " ".join(wiring.load))))
        return (line,) if line else ()
    return (*(part for text in label for part in wrapped_label(text, M.gap_across - 2)), *wiring.load)


def _labelled(hops: Sequence[Hop]) -> Hop | None:
    """Returns the hop with the most space for a label: the first horizontal hop or, if there is none, the first hop of
    the exchange.

    Returns None if there are only checkpoint hops.
    """
    exchanging = [hop for hop in hops if not hop.look.thin]
    return max(exchanging, key=lambda hop: abs(arrow_at(hop.points)[1][0]), default=None)
