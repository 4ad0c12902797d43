"""Lays out slots and chips in racks, and racks on the canvas. Does not depend on Qt.

Lengths are metrics of the theme. A rack is four slots wide. The chip of a replica with several GPUs covers all of its
slots; it has one piece for each block of adjacent slots.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, groupby
from math import ceil, sqrt
from types import MappingProxyType

from torchyard_gui.canvas.geometry import Box
from torchyard_gui.theme.tokens import METRICS as M

PAD = M.pad
SLOTS_ACROSS = 4
CPU_ACROSS = 2
INNER = M.rack - 2 * PAD
SLOT_ACROSS, SLOT_DOWN = M.slot_width + M.slot_gap, M.slot_height + M.slot_gap
"""Distance between the left edges, and between the upper edges, of adjacent slots."""
LINE = M.line
MARGIN = 24
"""Margin around all racks."""
TRAY_MOST = 40
"""Maximum number of chips shown in the tray. A line below the chips says how many more there are."""


@dataclass(frozen=True)
class RackLayout:
    """Layout of one rack. Boxes are in the rack's coordinates."""

    height: float
    slots: Mapping[int, Box] = field(default_factory=dict)
    """Boxes of the slots, by GPU index."""
    chips: Mapping[str, tuple[Box, ...]] = field(default_factory=dict)
    """Boxes of each replica's chip, by replica. The first box contains the chip's text."""
    rule: float = 0
    """Vertical position of the line above the footer."""
    words: Box | None = None
    """In the tray, the box for the reasons why replicas could not be placed."""
    width: float = M.rack

    @property
    def across(self) -> int:
        """The number of columns of slots, or of chips as wide as a slot."""
        return round((self.width - 2 * PAD + M.slot_gap) / SLOT_ACROSS)

    @property
    def slots_top(self) -> float:
        """Vertical position of the first row of slots and chips, which is below the header. In the tray, it is also
        below the reasons.
        """
        tops = [box.y for box in self.slots.values()] + [box.y for boxes in self.chips.values() for box in boxes]
        return min(tops, default=self.rule)

    def slot_at(self, x: float, y: float) -> int | None:
        """Returns the index of the GPU whose slot is at a point, or None if there is none.

        The index is computed rather than searched for, because this method is called on every mouse move.
        """
        column, across = divmod(x - PAD, SLOT_ACROSS)
        row, down = divmod(y - M.rack_header, SLOT_DOWN)
        if across >= M.slot_width or down >= M.slot_height or not 0 <= column < SLOTS_ACROSS or row < 0:
            return None
        position = int(row) * SLOTS_ACROSS + int(column)
        return self._order[position] if position < len(self._order) else None

    @cached_property
    def _order(self) -> tuple[int, ...]:
        return tuple(self.slots)

    @property
    def footer(self) -> Box:
        return Box(PAD, self.height - M.rack_footer, INNER, M.rack_footer)


def lay_rack(gpus: Sequence[int], on_gpus: Sequence[tuple[str, tuple[int, ...]]], on_cpus: Sequence[str]) -> RackLayout:
    """Lays out a rack: the slots of the GPUs, the chips on these slots, and the chips of replicas without GPUs. Slots
    are identified by GPU index.
    """
    slots = {gpu: _slot(position) for position, gpu in enumerate(gpus)}
    positions = {gpu: position for position, gpu in enumerate(gpus)}
    chips = {name: pieces([positions[gpu] for gpu in indices if gpu in positions]) for name, indices in on_gpus}
    bottom = float(M.rack_header)
    if slots:
        rows = -(-len(slots) // SLOTS_ACROSS)
        bottom += rows * (M.slot_height + M.slot_gap) - M.slot_gap
    if on_cpus:
        top = bottom + (M.slot_gap if slots else 0)
        chips |= {name: (_cpu_chip(position, top),) for position, name in enumerate(on_cpus)}
        rows = -(-len(on_cpus) // CPU_ACROSS)
        bottom = top + rows * (M.cpu_chip + M.slot_gap) - M.slot_gap
    if not slots and not on_cpus:
        bottom += M.cpu_chip
    rule = bottom + PAD
    return RackLayout(rule + M.rack_footer, slots, {name: boxes for name, boxes in chips.items() if boxes}, rule)


def lay_tray(names: Sequence[str], lines: int) -> RackLayout:
    """Lays out the tray of unplaced replicas. Above the chips, there is space for `lines` lines of reasons."""
    words = Box(PAD, M.rack_header, INNER, lines * LINE)
    top = words.bottom + (PAD if lines else 0)
    shown = names[:TRAY_MOST]
    chips = {name: (_slot(position).moved(0, top - M.rack_header),) for position, name in enumerate(shown)}
    rows = -(-len(shown) // SLOTS_ACROSS)
    bottom = top + rows * (M.slot_height + M.slot_gap) - M.slot_gap
    if len(names) > len(shown):
        bottom += LINE + M.slot_gap
    return RackLayout(bottom + PAD, {}, chips, bottom + PAD, words)


def group_columns(largest: int) -> int:
    """Returns the number of chips in each row of a group frame. The number is the same for all frames.

    If the groups are small, there are four chips in a row, as in racks. Otherwise, the number is chosen such that the
    frame of the largest group is approximately square.
    """
    return max(SLOTS_ACROSS, ceil(sqrt(largest * SLOT_DOWN / SLOT_ACROSS)))


def lay_group(names: Sequence[str], across: int) -> RackLayout:
    """Lays out the frame of a group, with `across` chips in each row."""
    chips = {name: (_slot(position, across),) for position, name in enumerate(names)}
    rows = max(-(-len(names) // across), 1)
    bottom = M.rack_header + rows * SLOT_DOWN - M.slot_gap + PAD
    return RackLayout(bottom, {}, chips, bottom, width=2 * PAD + across * SLOT_ACROSS - M.slot_gap)


def pieces(positions: Sequence[int]) -> tuple[Box, ...]:
    """Returns the boxes that cover the slots at the given positions. The widest box comes first.

    A box covers a part of a row, or equal parts of consecutive rows.
    """
    stretches: list[tuple[int, int, int]] = []
    for _, members in groupby(enumerate(sorted(positions)), lambda pair: (pair[1] - pair[0], pair[1] // SLOTS_ACROSS)):
        run = [position for _, position in members]
        stretches.append((run[0], run[-1], 1))
    joined: list[tuple[int, int, int]] = []
    for first, last, rows in stretches:
        if joined:
            above, above_last, above_rows = joined[-1]
            below_it = above + above_rows * SLOTS_ACROSS == first
            if below_it and last - first == above_last - above:
                joined[-1] = (above, above_last, above_rows + 1)
                continue
        joined.append((first, last, rows))
    boxes = [_block(first, last, rows) for first, last, rows in joined]
    # The first box contains the text of the chip, so it must be the widest.
    widest = max(range(len(boxes)), key=lambda at: (boxes[at].width, -at), default=0)
    return tuple(boxes[widest : widest + 1] + boxes[:widest] + boxes[widest + 1 :])


def _slot(position: int, across: int = SLOTS_ACROSS) -> Box:
    row, column = divmod(position, across)
    return Box(
        PAD + column * (M.slot_width + M.slot_gap),
        M.rack_header + row * (M.slot_height + M.slot_gap),
        M.slot_width,
        M.slot_height,
    )


def _block(first: int, last: int, rows: int) -> Box:
    start, end = _slot(first), _slot(last)
    return Box(start.x, start.y, end.right - start.x, rows * (M.slot_height + M.slot_gap) - M.slot_gap)


def _cpu_chip(position: int, top: float) -> Box:
    row, column = divmod(position, CPU_ACROSS)
    width = (INNER - (CPU_ACROSS - 1) * M.slot_gap) / CPU_ACROSS
    return Box(PAD + column * (width + M.slot_gap), top + row * (M.cpu_chip + M.slot_gap), width, M.cpu_chip)


Place = tuple[int, int]
"""Row and column on the canvas."""


@dataclass(frozen=True)
class Cell:
    """Position of a rack on the canvas."""

    key: str
    row: int
    column: int
    box: Box


@dataclass(frozen=True)
class Heading:
    """Heading above a section of racks."""

    section: str
    box: Box


@dataclass(frozen=True)
class Grid:
    """Racks in rows and columns. The racks of a row are top-aligned."""

    columns: int
    cells: tuple[Cell, ...] = ()
    tops: tuple[float, ...] = ()
    """Vertical positions of the rows."""
    width: float = M.rack
    """Width of each rack."""
    headings: tuple[Heading, ...] = ()
    sections: Grid | None = None
    """The grid of the sections with their headings; None if the racks are not in sections."""

    @cached_property
    def pitch(self) -> float:
        return self.width + M.gap_across

    @cached_property
    def _by_place(self) -> dict[tuple[int, int], Cell]:
        return {(cell.row, cell.column): cell for cell in self.cells}

    def cell_at(self, x: float, y: float) -> Cell | None:
        """Returns the cell at a point, or None if there is none.

        The cell is computed rather than searched for, because this method is called on every mouse move.
        """
        cell = self._by_place.get((bisect_right(self.tops, y) - 1, int(x // self.pitch)))
        return cell if cell is not None and cell.box.has(x, y) else None

    def cell(self, key: str) -> Cell:
        return next(cell for cell in self.cells if cell.key == key)

    def row_bottom(self, row: int) -> float:
        return max(cell.box.bottom for cell in self.cells if cell.row == row)

    def port_height(self, row: int) -> float:
        """Returns the vertical position of the main side ports, which is the same for all racks of a row."""
        members = [cell.box for cell in self.cells if cell.row == row]
        return members[0].y + round(min(box.height for box in members) / 2)


def arrange(
    heights: Mapping[str, float],
    columns: int,
    kept: Mapping[str, Place] = MappingProxyType({}),
    width: float = M.rack,
) -> Grid:
    """Arranges racks row by row.

    Args:
        heights: Height of each rack by its key.
        kept: Rows and columns of the racks that stay where they are. The other racks get free positions.
    """
    places = {key: kept[key] for key in heights if key in kept}
    taken = set(places.values())
    free = (place for at in count() if (place := divmod(at, columns)) not in taken)
    places |= {key: next(free) for key in heights if key not in kept}
    rows = {row: number for number, row in enumerate(sorted({row for row, _ in places.values()}))}
    cells: list[Cell] = []
    tops: list[float] = []
    top = 0.0
    for row, number in rows.items():
        members = sorted((column, key) for key, (own_row, column) in places.items() if own_row == row)
        tops.append(top)
        for column, key in members:
            box = Box(column * (width + M.gap_across), top, width, heights[key])
            cells.append(Cell(key, number, column, box))
        top += max(heights[key] for _, key in members) + M.gap_down
    return Grid(columns, tuple(cells), tuple(tops), width)


def best_columns(heights: Sequence[float], width: float, height: float, rack_width: float = M.rack) -> int:
    """Returns the number of columns at which racks of the given heights appear largest in a view, up to full size.

    Among arrangements in which the racks appear equally large, the one with the most similar numbers of rows and
    columns is chosen, because it keeps the edges of a ring short. Of two such arrangements, the wider one is chosen.
    """
    number = len(heights)
    if number <= 1 or width <= 0 or height <= 0:
        return 1

    def merit(columns: int) -> tuple[float, int, int]:
        rows = [heights[start : start + columns] for start in range(0, number, columns)]
        across = columns * (rack_width + M.gap_across) - M.gap_across + 2 * MARGIN
        down = sum(max(row) for row in rows) + (len(rows) - 1) * M.gap_down + 2 * MARGIN
        scale = min(1.0, width / across, height / down)
        return (round(scale, 3), -abs(columns - len(rows)), columns)

    return max(range(1, min(number, 64) + 1), key=merit)


HEADING = 72.0
"""Height of a section's heading."""
SECTION_GAP = 110.0
"""Distance between a heading and the racks above it."""
PORT_ROOM = 34.0
"""Space above a heading for the ports of edges between sections."""
MOST_ACROSS = 12
"""Maximum number of racks in a row of a section."""


def arrange_sections(
    heights: Mapping[str, float], sections: Mapping[str, Sequence[str]], shape: tuple[int, int]
) -> Grid:
    """Arranges racks in sections, each with a heading. The section "" has no heading.

    Args:
        heights: Height of each rack by its key.
        sections: Keys of the racks by section.
        shape: (number of sections side by side, number of racks in each row of a section).
    """
    beside, across = shape
    pitch = M.rack + M.gap_across
    cells: list[Cell] = []
    tops: list[float] = []
    headings: list[Heading] = []
    blocks: list[Cell] = []
    names = list(sections)
    top = 0.0
    for band, start in enumerate(range(0, len(names), beside)):
        members = names[start : start + beside]
        band_top = top
        top += HEADING
        for line in range(max(-(-len(sections[name]) // across) for name in members)):
            row: list[Cell] = []
            for place, name in enumerate(members):
                for at, key in enumerate(sections[name][line * across : (line + 1) * across]):
                    column = place * across + at
                    row.append(Cell(key, len(tops), column, Box(column * pitch, top, M.rack, heights[key])))
            tops.append(top)
            cells += row
            top += max(cell.box.height for cell in row) + M.gap_down
        for place, name in enumerate(members):
            heading = Box(place * across * pitch, band_top, across * pitch - M.gap_across, HEADING)
            block_top = band_top - PORT_ROOM
            block = Box(heading.x, block_top, heading.width, top - M.gap_down - block_top)
            blocks.append(Cell(name, band, place, block))
            if name:
                headings.append(Heading(name, heading))
        top += SECTION_GAP - M.gap_down
    block_tops = tuple(dict.fromkeys(block.box.y for block in blocks))
    blocks_grid = Grid(beside, tuple(blocks), block_tops, across * pitch - M.gap_across)
    return Grid(beside * across, tuple(cells), tuple(tops), M.rack, tuple(headings), blocks_grid)


def best_shape(
    heights: Mapping[str, float], sections: Mapping[str, Sequence[str]], width: float, height: float
) -> tuple[int, int]:
    """Returns the shape for `arrange_sections` in which the racks appear largest in a view."""
    if width <= 0 or height <= 0:
        return 1, SLOTS_ACROSS
    racks = [[heights[key] for key in keys] for keys in sections.values()]

    def merit(shape: tuple[int, int]) -> tuple[float, int]:
        beside, across = shape
        down = 2.0 * MARGIN
        for start in range(0, len(racks), beside):
            band = racks[start : start + beside]
            for line in range(0, max(map(len, band)), across):
                down += max(height for section in band for height in section[line : line + across]) + M.gap_down
            down += HEADING + SECTION_GAP - M.gap_down
        along = beside * across * (M.rack + M.gap_across) - M.gap_across + 2 * MARGIN
        return round(min(1.0, width / along, height / down), 3), across

    most = min(max(map(len, racks), default=1), MOST_ACROSS)
    least = min(most, SLOTS_ACROSS)  # A narrower section would have no space for the text of its heading.
    return max(
        ((beside, across) for beside in range(1, len(racks) + 1) for across in range(least, most + 1)), key=merit
    )
