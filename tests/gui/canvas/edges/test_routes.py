"""Tests of the routes of an all-reduce: lines neither cross nor touch, and ports do not overlap."""

from __future__ import annotations

import random
import time
from itertools import combinations, pairwise

import pytest

from torchyard_gui.canvas.edges.edge_items import PORT, arrows
from torchyard_gui.canvas.edges.routes import Hop, loop
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.layout import Grid, arrange

APART = 7
"""The smallest distance in pixels between the centres of two lines at which they look separate. Each line is 3 pixels
wide.
"""


def stretches(hop: Hop) -> list[Box]:
    """Returns the straight segments of a route as boxes that are APART wide."""
    return [
        Box(min(x1, x2), min(y1, y2), abs(x1 - x2), abs(y1 - y2)).grown(APART / 2)
        for (x1, y1), (x2, y2) in pairwise(hop.points)
    ]


def meetings(hops: tuple[Hop, ...]) -> list[tuple[str, str]]:
    """Returns the pairs of lines that cross or are too close to each other."""
    return [
        (f"{one.source}-{one.target}", f"{other.source}-{other.target}")
        for one, other in combinations(hops, 2)
        if any(a.meets(b) for a in stretches(one) for b in stretches(other))
    ]


def stacked(hops: tuple[Hop, ...]) -> list[object]:
    ports = [end for hop in hops for end in (hop.points[0], hop.points[-1])]
    return [(a, b) for a, b in combinations(ports, 2) if abs(a[0] - b[0]) + abs(a[1] - b[1]) < 2 * PORT + 4]


def over_racks(grid: Grid, hops: tuple[Hop, ...]) -> list[str]:
    return [
        hop.source
        for hop in hops
        for way in stretches(hop)
        for cell in grid.cells
        if way.grown(-APART / 2 + 0.01).meets(cell.box.grown(-1))
    ]


def assert_clean(grid: Grid, hops: tuple[Hop, ...]) -> None:
    assert meetings(hops) == []
    assert stacked(hops) == []
    assert over_racks(grid, hops) == []


@pytest.mark.parametrize("heights", [[168], [168, 120], [108, 216, 168, 120, 264]])
@pytest.mark.parametrize("columns", range(1, 9))
@pytest.mark.parametrize("count", range(2, 14))
def test_no_line_meets_another(count: int, columns: int, heights: list[int]) -> None:
    grid = arrange({f"h{n}": heights[n % len(heights)] for n in range(count)}, columns)
    hops = loop(grid, {cell.key for cell in grid.cells})
    assert_clean(grid, hops)


@pytest.mark.parametrize("seed", range(40))
def test_hosts_that_do_not_train_are_gone_round(seed: int) -> None:
    chance = random.Random(seed)
    count, columns = chance.randint(4, 14), chance.randint(1, 5)
    grid = arrange({f"h{n}": chance.choice([108, 168, 216]) for n in range(count)}, columns)
    members = set(chance.sample([cell.key for cell in grid.cells], chance.randint(2, count)))
    hops = loop(grid, members)
    assert {hop.source for hop in hops} | {hop.target for hop in hops} == members
    assert over_racks(grid, hops) == []
    assert stacked(hops) == []
    assert len(meetings(hops)) <= 1


@pytest.mark.parametrize("columns", [1, 2])
def test_two_hosts_share_one_line_with_an_arrow_each_way(columns: int) -> None:
    (hop,) = loop(arrange({"a": 168, "b": 168}, columns), {"a", "b"})
    assert len(hop.points) == 2
    one, other = arrows(hop)
    middle = ((hop.points[0][0] + hop.points[1][0]) / 2, (hop.points[0][1] + hop.points[1][1]) / 2)
    tips = [(arrow.at(0).x() - middle[0], arrow.at(0).y() - middle[1]) for arrow in (one, other)]
    assert tips[0] == (-tips[1][0], -tips[1][1]) != (0, 0)
    assert not one.intersects(other)


def test_three_in_a_row_pass_back_below_them() -> None:
    grid = arrange(dict.fromkeys("abc", 168), 3)
    back = loop(grid, set("abc"))[-1]
    assert (back.source, back.target, len(back.points)) == ("c", "a", 4)
    assert all(y >= 168 for _, y in back.points)


def test_a_hundred_hosts_are_routed_at_once() -> None:
    grid = arrange({f"h{n}": 168 for n in range(128)}, 11)
    begun = time.thread_time()  # CPU time, because wall time depends on other processes.
    hops = loop(grid, {cell.key for cell in grid.cells})
    assert time.thread_time() - begun < 0.3
    assert meetings(hops) == []
