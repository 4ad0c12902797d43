"""Routes edges through the gutters between racks, along the cheapest path on a lattice of tracks. Does not depend on
Qt.

There are tracks in every gutter and at the ports of every row and column. The cost of a path is its length plus costs
for corners, for certain ports and especially for nodes on earlier paths. These costs ensure that edges cross or share a
track only where necessary.

Source: A* (Hart, Nilsson and Raphael 1968) on states that consist of a node and a direction, because corners have a
cost.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchyard_gui.canvas.racks.layout import Cell, Grid
from torchyard_gui.theme.tokens import METRICS as M

Point = tuple[float, float]
Node = tuple[int, int]
"""A node of the lattice, as the indices of a vertical and a horizontal track."""

LANE = 12.0
"""Distance between tracks in a gutter between columns."""
LOW_LANE = 8.0
"""Distance between tracks in a gap between rows."""
PORTS = (0.0, -2 * LANE, 2 * LANE)
"""Offsets of the ports on a border from the border's main port, which straight edges between adjacent racks use."""
CORNER, ASIDE, SAME_SIDE, MEETING = 60.0, 14.0, 500.0, 4000.0
ABOVE = 4.0
"""Cost of a port on the upper border. Because of this cost, the lower of two equally long paths is chosen."""
RIGHT, LEFT, DOWN, UP = (1, 0), (-1, 0), (0, 1), (0, -1)


@dataclass(frozen=True)
class Port:
    """A point on the border of a rack where an edge can start or end, with its outward direction."""

    at: Point
    away: tuple[int, int]
    aside: float
    """Distance from the main port of the same border.

    The main port is in the middle of an upper or lower border, and at `Grid.port_height` on a side.
    """


class Gutters:
    """The routing tracks between the racks of a grid, and the paths that have been routed along them."""

    def __init__(self, grid: Grid):
        self._grid = grid
        pitch = grid.pitch
        columns = max((cell.column for cell in grid.cells), default=0) + 1
        centres = [column * pitch - M.gap_across / 2 for column in range(columns + 1)]
        gutters = [centre + lane for centre in centres for lane in (-LANE, 0, LANE)]
        middles = [column * pitch + grid.width / 2 + port for column in range(columns) for port in PORTS]
        self._xs = sorted([*gutters, *middles])
        rows = range(len(grid.tops))
        self._heights = [grid.port_height(row) for row in rows]
        gaps = [grid.tops[0] - M.gap_down / 2] if grid.tops else []
        gaps += [grid.row_bottom(row) + M.gap_down / 2 for row in rows]
        lanes = [gap + lane for gap in gaps for lane in (-LOW_LANE, 0, LOW_LANE)]
        self._ys = sorted([*lanes, *(height + port for height in self._heights for port in PORTS)])
        self._columns = [[cell for cell in grid.cells if cell.column == column] for column in range(columns)]
        self._by_row = [[cell for cell in grid.cells if cell.row == row] for row in rows]
        self._taken: set[Node] = set()
        self._ports: dict[str, list[Port]] = {}

    def lay_straight(self, one: Cell, other: Cell) -> tuple[Point, ...] | None:
        """Lays the straight path between adjacent racks.

        Returns None if the racks are not adjacent, or if one of the two ports is already used.
        """
        start, end = self._facing(one, other)
        if start is None or end is None or self._is_used(one, start) or self._is_used(other, end):
            return None
        self._lay((start.at, end.at), one, start, other, end)
        return (start.at, end.at)

    def lay(self, one: Cell, other: Cell) -> tuple[Point, ...]:
        """Lays the cheapest path between two racks and returns it."""
        points, start, end = self._search(one, other)
        self._lay(points, one, start, other, end)
        return points

    def take(self, points: Sequence[Point]) -> None:
        """Marks a path as used. Later calls to `lay` avoid it where possible."""
        for (x1, y1), (x2, y2) in pairwise(points):
            across = range(bisect_left(self._xs, min(x1, x2)), bisect_right(self._xs, max(x1, x2)))
            down = range(bisect_left(self._ys, min(y1, y2)), bisect_right(self._ys, max(y1, y2)))
            self._taken.update((x, y) for x in across for y in down)

    def take_port(self, cell: Cell, at: Point) -> None:
        self._ports.setdefault(cell.key, []).extend(port for port in self.ports(cell) if port.at == at)

    def _facing(self, one: Cell, other: Cell) -> tuple[Port | None, Port | None]:
        across, down = other.column - one.column, other.row - one.row
        if (abs(across), abs(down)) not in ((1, 0), (0, 1)):
            return None, None
        away = (across, down)
        back = (-across, -down)
        start = next(port for port in self.ports(one) if port.away == away and not port.aside)
        end = next(port for port in self.ports(other) if port.away == back and not port.aside)
        return start, end

    def _is_used(self, cell: Cell, port: Port) -> bool:
        return port in self._ports.get(cell.key, ())

    def ports(self, cell: Cell) -> Iterator[Port]:
        box = cell.box
        for aside in PORTS:
            height = self._heights[cell.row] + aside
            if box.y < height < box.bottom:
                yield Port((box.right, height), RIGHT, aside)
                yield Port((box.x, height), LEFT, aside)
            yield Port((box.middle[0] + aside, box.bottom), DOWN, aside)
            yield Port((box.middle[0] + aside, box.y), UP, aside)

    def _lay(self, points: tuple[Point, ...], one: Cell, start: Port, other: Cell, end: Port) -> None:
        self._ports.setdefault(one.key, []).append(start)
        self._ports.setdefault(other.key, []).append(end)
        self.take(points)

    def _search(self, one: Cell, other: Cell) -> tuple[tuple[Point, ...], Port, Port]:
        starts = dict(self._doors(one))
        ends = dict(self._doors(other))
        costs: dict[tuple[Node, tuple[int, int]], float] = {}
        came: dict[tuple[Node, tuple[int, int]], tuple[Node, tuple[int, int]] | None] = {}
        heap: list[tuple[float, Node, tuple[int, int]]] = []
        for (node, away), (price, _) in starts.items():
            costs[node, away] = price
            came[node, away] = None
            heapq.heappush(heap, (price + self._distance(node, other), node, away))
        best: tuple[float, tuple[Node, tuple[int, int]], tuple[Node, tuple[int, int]]] | None = None
        while heap:
            hoped, node, heading = heapq.heappop(heap)
            if best is not None and hoped >= best[0]:
                break
            cost = costs[node, heading]
            if hoped > cost + self._distance(node, other):
                continue
            for away in (RIGHT, LEFT, DOWN, UP):
                if (node, away) in ends:
                    total = cost + ends[node, away][0] + (CORNER if heading != (-away[0], -away[1]) else 0)
                    if heading != away and (best is None or total < best[0]):
                        best = total, (node, heading), (node, away)
            for step in (RIGHT, LEFT, DOWN, UP):
                if step == (-heading[0], -heading[1]):
                    continue
                there = self._step(node, step)
                if there is None:
                    continue
                price = cost + self._price(node, there) + (CORNER if step != heading else 0)
                if price < costs.get((there, step), float("inf")):
                    costs[there, step] = price
                    came[there, step] = (node, heading)
                    heapq.heappush(heap, (price + self._distance(there, other), there, step))
        assert best is not None, "the gutters around all racks are always open"
        way = [best[1]]
        while (before := came[way[-1]]) is not None:
            way.append(before)
        way.reverse()
        start, end = starts[way[0]][1], ends[best[2]][1]
        places = [start.at, *((self._xs[x], self._ys[y]) for (x, y), _ in way), end.at]
        return _corners(places), start, end

    def _distance(self, node: Node, cell: Cell) -> float:
        """Returns a lower bound for the length of a path from a node to a rack, which A* needs."""
        x, y, box = self._xs[node[0]], self._ys[node[1]], cell.box
        return max(box.x - x, 0.0, x - box.right) + max(box.y - y, 0.0, y - box.bottom)

    def _doors(self, cell: Cell) -> Iterator[tuple[tuple[Node, tuple[int, int]], tuple[float, Port]]]:
        """Yields each free port of a rack.

        Yields:
            Two pairs for each port: (first node outside the rack, outward direction), and (cost of the path to that
                node including the port's cost, port).
        """
        used = self._ports.get(cell.key, [])
        for port in self.ports(cell):
            if port in used:
                continue
            (x, y), (across, down) = port.at, port.away
            if across:
                column = bisect_right(self._xs, x) if across > 0 else bisect_left(self._xs, x) - 1
                node = column, bisect_left(self._ys, y)
            else:
                row = bisect_right(self._ys, y) if down > 0 else bisect_left(self._ys, y) - 1
                node = bisect_left(self._xs, x), row
            same = SAME_SIDE if any(other.away == port.away for other in used) else 0.0
            aside = (ASIDE if port.aside else 0.0) + (ABOVE if port.away == UP else 0.0)
            length = abs(self._xs[node[0]] - x) + abs(self._ys[node[1]] - y)
            yield (node, port.away), (length + aside + same + self._meeting(node), port)

    def _step(self, node: Node, step: tuple[int, int]) -> Node | None:
        x, y = node[0] + step[0], node[1] + step[1]
        if not (0 <= x < len(self._xs) and 0 <= y < len(self._ys)):
            return None
        if step[0]:
            left, right = sorted((self._xs[node[0]], self._xs[x]))
            height = self._ys[y]
            row = bisect_right(self._grid.tops, height) - 1
            cells = self._by_row[row] if row >= 0 else []
            blocked = any(c.box.y < height < c.box.bottom and c.box.x < right and left < c.box.right for c in cells)
        else:
            top, bottom = sorted((self._ys[node[1]], self._ys[y]))
            at = self._xs[x]
            column = int(at // self._grid.pitch)
            cells = self._columns[column] if 0 <= column < len(self._columns) else []
            blocked = any(c.box.x < at < c.box.right and c.box.y < bottom and top < c.box.bottom for c in cells)
        return None if blocked else (x, y)

    def _price(self, node: Node, there: Node) -> float:
        length = abs(self._xs[there[0]] - self._xs[node[0]]) + abs(self._ys[there[1]] - self._ys[node[1]])
        return length + self._meeting(there)

    def _meeting(self, node: Node) -> float:
        return MEETING if node in self._taken else 0.0


def _corners(places: list[Point]) -> tuple[Point, ...]:
    """Returns the ends and the corners of a path, without the points in between."""
    kept = places[:1]
    for before, place, after in zip(places, places[1:], places[2:], strict=False):
        straight = (before[0] == place[0] == after[0]) or (before[1] == place[1] == after[1])
        if not straight and place != kept[-1]:
            kept.append(place)
    return (*kept, places[-1])
