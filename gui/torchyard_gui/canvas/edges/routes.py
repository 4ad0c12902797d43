"""Routes edges between hosts through the gutters and never over a rack. Does not depend on Qt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot

from torchyard_gui.canvas.edges.gutters import Gutters, Point
from torchyard_gui.canvas.racks.layout import Cell, Grid
from torchyard_gui.theme.tokens import METRICS as M


@dataclass(frozen=True)
class HopLook:
    """Appearance of a hop, which is an edge between two racks."""

    dashed: bool = False
    """Whether the line is dashed, as for asynchronous exchanges and for checkpoints."""
    thin: bool = False
    arrows: bool = True
    ports: tuple[str, str] = ("trains", "trains")
    """Ports at the two ends: "trains" (○), "both" (⊡), or "" for none."""


@dataclass(frozen=True)
class Hop:
    """Edge between the borders of two racks, given by its corners."""

    source: str
    target: str
    points: tuple[Point, ...]
    both_ways: bool = False
    """Whether the arrows show both directions, as in a ring of two racks."""
    look: HopLook = field(default_factory=HopLook)


def loop(
    grid: Grid, members: Collection[str], gutters: Gutters | None = None, look: HopLook | None = None
) -> tuple[Hop, ...]:
    """Routes a ring once through all members. Where possible, neighbours in the ring are adjacent racks.

    The ring only shows that all members take part. In an all-reduce, the collective library chooses the actual order.
    """
    ring = ring_order(grid, members)
    if len(ring) < 2:
        return ()
    gutters, look = gutters or Gutters(grid), look or HopLook()
    if len(ring) == 2:
        one, other = ring
        points = gutters.lay_straight(one, other) or gutters.lay(one, other)
        return (Hop(one.key, other.key, points, both_ways=True, look=look),)
    return _hops(list(zip(ring, (*ring[1:], ring[0]), strict=True)), gutters, look)


def between(grid: Grid, pairs: Collection[tuple[str, str]], gutters: Gutters, look: HopLook) -> tuple[Hop, ...]:
    """Routes a hop for each pair of hosts. All hosts must be on the grid."""
    cells = {cell.key: cell for cell in grid.cells}
    return _hops([(cells[one], cells[other]) for one, other in pairs], gutters, look)


def _hops(pairs: Sequence[tuple[Cell, Cell]], gutters: Gutters, look: HopLook) -> tuple[Hop, ...]:
    # Straight hops are laid first, because all other hops must avoid them.
    straight = {pair: gutters.lay_straight(*pair) for pair in pairs}
    return tuple(
        Hop(one.key, other.key, straight[one, other] or gutters.lay(one, other), look=look) for one, other in pairs
    )


@dataclass(frozen=True)
class Branch:
    """The path from a host's port to the trunk."""

    host: str
    does: str
    """The host's role in the exchange: "trains", "serves" or "both"."""
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Trunk:
    """A line that many hosts share: stems in the gutters, a bus that connects the stems, and one branch per host."""

    branches: tuple[Branch, ...]
    stems: tuple[tuple[Point, Point], ...]
    label_at: Point
    """Centre of the pill with the label, in a gutter."""
    is_flat: bool
    """Whether all hosts are in one row and use the same gutter, so the pill must fit into this gutter."""


def lay_trunk(grid: Grid, members: Sequence[tuple[str, str]], gutters: Gutters) -> Trunk:
    """Routes a trunk and marks its tracks as used in `gutters`. Each pair of columns shares a gutter."""
    cells = {cell.key: cell for cell in grid.cells}
    stem_of = {host: _stem(grid, cells[host]) for host, _ in members}
    heights = {host: grid.port_height(cells[host].row) for host, _ in members}
    xs = sorted(set(stem_of.values()))
    rows = sorted({cells[host].row for host, _ in members})
    is_flat = len(rows) == 1
    # The bus runs through the gap between rows that is closest to the middle.
    bus = grid.row_bottom(rows[(len(rows) - 1) // 2]) + M.gap_down / 2
    stems: list[tuple[Point, Point]] = []
    for x in xs:
        ends = [heights[host] for host, stem in stem_of.items() if stem == x] + ([bus] if len(xs) > 1 else [])
        if max(ends) > min(ends):
            stems.append(((x, min(ends)), (x, max(ends))))
    if len(xs) > 1:
        stems.append(((xs[0], bus), (xs[-1], bus)))
    branches = []
    for host, does in members:
        cell, x, y = cells[host], stem_of[host], heights[host]
        port = (cell.box.right if x > cell.box.x else cell.box.x, y)
        stem = next((ends for ends in stems if ends[0][0] == x == ends[1][0]), None)
        points: tuple[Point, ...] = (port, (x, y))
        if stem is not None:
            middle = (stem[0][1] + stem[1][1]) / 2
            points = (*points, (x, y + (BEND if y < middle else -BEND)))
        branches.append(Branch(host, does, points))
        gutters.take((port, (x, y)))
        gutters.take_port(cell, port)
    for span in stems:
        gutters.take(span)
    label = (xs[len(xs) // 2], heights[members[0][0]] if is_flat and len(xs) == 1 else bus)
    return Trunk(tuple(branches), tuple(_shortened(ends) for ends in stems), label, is_flat and len(xs) == 1)


BEND = 2.0 * M.edge_corner
"""The length by which a branch runs along its stem, which is twice the radius of the rounded corner."""


def _shortened(ends: tuple[Point, Point]) -> tuple[Point, Point]:
    """Returns a stem that is shortened at both ends, where branches bend into the stem. A bus or a short stem is
    returned unchanged.
    """
    (x1, y1), (x2, y2) = ends
    if x1 != x2 or y2 - y1 < 2 * M.edge_corner:
        return ends
    return (x1, y1 + M.edge_corner), (x2, y2 - M.edge_corner)


def _stem(grid: Grid, cell: Cell) -> float:
    """Returns the horizontal position of the gutter to which the branch of a rack leads.

    Each pair of columns shares the gutter between them. If the last column is not part of a pair, its branches lead to
    the gutter before it.
    """
    last = max(other.column for other in grid.cells)
    left = cell.column - cell.column % 2
    if left == last and left > 0:
        left -= 1
    return left * grid.pitch + grid.width + M.gap_across / 2


def ring_order(grid: Grid, members: Collection[str]) -> tuple[Cell, ...]:
    """Returns the members as a ring in which neighbours, including the last and the first member, are adjacent if
    possible.
    """
    cells = [cell for cell in grid.cells if cell.key in members]
    columns = {cell.column for cell in cells}
    rows = sorted({cell.row for cell in cells})
    if len(columns) <= 1 or len(rows) <= 1:
        return tuple(cells)
    if len(columns) % 2 == 0:
        return _round_by_columns(cells, sorted(columns), rows[0])
    return _round_by_rows(cells, rows, min(columns))


def _round_by_columns(cells: Sequence[Cell], columns: Sequence[int], first_row: int) -> tuple[Cell, ...]:
    # The ring runs along the first row and returns column by column, starting with the last column, alternately down
    # and up.
    order = [cell for cell in cells if cell.row == first_row]
    for turn, column in enumerate(reversed(columns)):
        below = [cell for cell in cells if cell.column == column and cell.row != first_row]
        order += below if turn % 2 == 0 else below[::-1]
    return tuple(order)


def _round_by_rows(cells: Sequence[Cell], rows: Sequence[int], first_column: int) -> tuple[Cell, ...]:
    # The ring runs through the rows in alternating directions. Below the first row, the first column is reserved for
    # the return path.
    order: list[Cell] = []
    for turn, row in enumerate(rows):
        along = [cell for cell in cells if cell.row == row and (cell.column != first_column or turn == 0)]
        order += along if turn % 2 == 0 else along[::-1]
    back = [cell for cell in cells if cell.column == first_column and cell.row != rows[0]]
    return (*order, *reversed(back))


def arrow_at(points: Sequence[Point]) -> tuple[Point, Point]:
    """Returns the position and direction of a hop's arrow, which is in the middle of the longest straight segment."""
    stretches = list(pairwise(points))
    (x1, y1), (x2, y2) = max(stretches, key=lambda ends: hypot(ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]))
    length = max(abs(x2 - x1) + abs(y2 - y1), 1e-9)
    return ((x1 + x2) / 2, (y1 + y2) / 2), ((x2 - x1) / length, (y2 - y1) / length)
