"""Tests of the canvas's geometry without a window: racks, the tray, columns, routes and neighbours."""

from __future__ import annotations

import pytest

from torchyard_gui.canvas.edges.routes import arrow_at, loop, ring_order
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.keyboard import neighbour
from torchyard_gui.canvas.racks.layout import arrange, best_columns, lay_rack, lay_tray, pieces


def test_a_rack_of_eight_gpus_has_two_rows_of_four_slots_as_in_the_pictures():
    layout = lay_rack(range(8), [(f"worker-{n}", (n,)) for n in range(8)], [])
    assert (layout.width, layout.height) == (352, 168)
    assert layout.slots[0] == Box(12, 36, 76, 40)
    assert layout.slots[7] == Box(264, 84, 76, 40)
    assert layout.chips["worker-5"] == (Box(96, 84, 76, 40),)


def test_a_rack_without_gpus_has_a_lane_of_low_chips():
    layout = lay_rack((), [], ["ps-0", "ps-1"])
    assert layout.chips["ps-1"] == (Box(180, 36, 160, 28),)
    assert layout.height == 36 + 28 + 12 + 32


def test_replicas_without_gpus_lie_below_the_slots():
    layout = lay_rack(range(4), [], ["ps-0"])
    assert layout.chips["ps-0"][0].y == 36 + 40 + 8


@pytest.mark.parametrize(
    ("gpus", "boxes"),
    [
        ((2, 3), [Box(180, 36, 160, 40)]),
        ((0, 1, 2, 3, 4, 5, 6, 7), [Box(12, 36, 328, 88)]),
        ((0, 1, 4, 5), [Box(12, 36, 160, 88)]),
        ((3, 4), [Box(264, 36, 76, 40), Box(12, 84, 76, 40)]),
        ((0, 2, 3), [Box(180, 36, 160, 40), Box(12, 36, 76, 40)]),
    ],
)
def test_a_replica_of_several_gpus_is_one_chip_over_its_slots_or_as_few_pieces_as_can_be(gpus, boxes):
    assert list(pieces(gpus)) == boxes


def test_the_tray_shows_at_most_forty_chips():
    layout = lay_tray([f"worker-{n}" for n in range(100)], 2)
    assert len(layout.chips) == 40


@pytest.mark.parametrize(
    ("hosts", "size", "columns"),
    [(1, (888, 796), 1), (2, (888, 796), 2), (6, (888, 796), 2), (6, (2200, 700), 3), (3, (400, 900), 1)],
)
def test_columns_follow_the_room(hosts, size, columns):
    assert best_columns([168.0] * hosts, *size) == columns


def test_racks_of_a_row_are_aligned_and_gaps_are_kept():
    grid = arrange({"a": 168, "b": 120, "c": 120}, 2)
    assert [cell.box[:2] for cell in grid.cells] == [(0, 0), (424, 0), (0, 200)]
    assert grid.cell_at(430, 50).key == "b"
    assert grid.cell_at(430, 150) is None, "below a lower rack of the row"
    assert grid.cell_at(400, 50) is None, "in the gutter"
    assert grid.cell_at(500, 250) is None, "where the last row has ended"
    assert grid.cell_at(-5, 5) is None


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 9, 12, 13])
def test_the_loop_passes_each_host_once_and_never_over_a_rack(columns, count):
    grid = arrange({f"h{n}": 120 + 48 * (n % 2) for n in range(count)}, columns)
    hops = loop(grid, {cell.key for cell in grid.cells})
    assert [hop.target for hop in hops] == [hop.source for hop in hops[1:]] + [hops[0].source]
    assert {hop.source for hop in hops} == {cell.key for cell in grid.cells}
    for hop in hops:
        for start, end in zip(hop.points, hop.points[1:], strict=False):
            assert start[0] == end[0] or start[1] == end[1], "edges run straight"
            left, top = min(start[0], end[0]), min(start[1], end[1])
            way = Box(left, top, abs(start[0] - end[0]) + 0.01, abs(start[1] - end[1]) + 0.01)
            inner = [cell.box.grown(-1) for cell in grid.cells]
            assert not any(way.meets(box) for box in inner), f"{hop} runs over a rack"


def test_a_loop_of_four_in_a_square_has_only_neighbours_next_to_each_other():
    grid = arrange(dict.fromkeys("abcd", 168), 2)
    assert [cell.key for cell in ring_order(grid, set("abcd"))] == ["a", "b", "d", "c"]
    assert all(len(hop.points) == 2 for hop in loop(grid, set("abcd")))


def test_one_host_has_no_loop():
    assert loop(arrange({"a": 168}, 1), {"a"}) == ()


def test_an_arrow_sits_on_the_longest_stretch_and_points_along_it():
    assert arrow_at([(0, 0), (10, 0), (10, -40)]) == ((10, -20), (0, -1))


def test_arrows_go_to_the_nearest_chip_in_that_direction():
    boxes = {"a": Box(0, 0, 76, 40), "b": Box(84, 0, 76, 40), "c": Box(0, 48, 76, 40), "far": Box(500, 0, 76, 40)}
    assert neighbour(boxes, "a", "right") == "b"
    assert neighbour(boxes, "a", "down") == "c"
    assert neighbour(boxes, "b", "right") == "far"
    assert neighbour(boxes, "a", "left") is None
