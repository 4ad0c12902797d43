"""How edges run: host to host through the gutters between racks, never over a rack. Pure geometry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot

from torchyard_gui.canvas.gutters import Gutters, Point
from torchyard_gui.canvas.layout import Cell, Grid


@dataclass(frozen=True)
class Hop:
    """An edge from one rack's border to another's, as the corners of its way."""

    source: str
    target: str
    points: tuple[Point, ...]
    both_ways: bool = False
    """Two hosts pass to each other on one line."""


def loop(grid: Grid, members: Collection[str]) -> tuple[Hop, ...]:
    """The ring of an all-reduce: every member once round, neighbours on the canvas next to each other.

    Which host really follows which is up to the collective library; the loop says that all of them take part.
    """
    ring = ring_order(grid, members)
    if len(ring) < 2:
        return ()
    gutters = Gutters(grid)
    if len(ring) == 2:
        one, other = ring
        points = gutters.lay_straight(one, other) or gutters.lay(one, other)
        return (Hop(one.key, other.key, points, both_ways=True),)
    pairs = list(zip(ring, (*ring[1:], ring[0]), strict=True))
    # Straight ones first: the others go round them.
    straight = {pair: gutters.lay_straight(*pair) for pair in pairs}
    return tuple(Hop(one.key, other.key, straight[one, other] or gutters.lay(one, other)) for one, other in pairs)


def ring_order(grid: Grid, members: Collection[str]) -> tuple[Cell, ...]:
    """Members in an order that mostly goes from neighbour to neighbour and ends beside its beginning."""
    cells = [cell for cell in grid.cells if cell.key in members]
    columns = {cell.column for cell in cells}
    rows = sorted({cell.row for cell in cells})
    if len(columns) <= 1 or len(rows) <= 1:
        return tuple(cells)
    if len(columns) % 2 == 0:
        return _round_by_columns(cells, sorted(columns), rows[0])
    return _round_by_rows(cells, rows, min(columns))


def _round_by_columns(cells: Sequence[Cell], columns: Sequence[int], first_row: int) -> tuple[Cell, ...]:
    # Along the first row, then column by column from the last, down and up in turn, and so back to the start.
    order = [cell for cell in cells if cell.row == first_row]
    for turn, column in enumerate(reversed(columns)):
        below = [cell for cell in cells if cell.column == column and cell.row != first_row]
        order += below if turn % 2 == 0 else below[::-1]
    return tuple(order)


def _round_by_rows(cells: Sequence[Cell], rows: Sequence[int], first_column: int) -> tuple[Cell, ...]:
    # Row by row, to and fro, the first column left free for the way back.
    order: list[Cell] = []
    for turn, row in enumerate(rows):
        along = [cell for cell in cells if cell.row == row and (cell.column != first_column or turn == 0)]
        order += along if turn % 2 == 0 else along[::-1]
    back = [cell for cell in cells if cell.column == first_column and cell.row != rows[0]]
    return (*order, *reversed(back))


def arrow_at(points: Sequence[Point]) -> tuple[Point, Point]:
    """Where a hop's arrow sits, and the unit vector it points along: the middle of the longest stretch."""
    stretches = list(pairwise(points))
    (x1, y1), (x2, y2) = max(stretches, key=lambda ends: hypot(ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]))
    length = max(abs(x2 - x1) + abs(y2 - y1), 1e-9)
    return ((x1 + x2) / 2, (y1 + y2) / 2), ((x2 - x1) / length, (y2 - y1) / length)
