"""Finds blocks, their edges, and proposed bookings at a position, for mouse and keyboard input. Also chooses the shape
of the mouse cursor.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, Qt

from torchyard_core.booking.search.slot_search import Fit
from torchyard_gui.bookings.calendar.block_painting import LABEL_WIDTH, rect_of
from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor
from torchyard_gui.bookings.calendar.overlays import boxes_of
from torchyard_gui.bookings.calendar.time_axis import Axis
from torchyard_gui.theme.tokens import METRICS as M

EDGE = 6
"""Maximum width in pixels of the area at each end of a block where a drag resizes the booking."""
HOUR = 3600.0
Shape = Qt.CursorShape


def block_at(picture: DisplayList, axis: Axis, at: QPointF) -> Block | None:
    """Returns the block at a position relative to the top left corner of the first row.

    If two blocks of a lane touch at the position, the later one is returned.
    """
    found = None
    for block in picture.blocks:
        if block.top > at.y():
            break
        if block.bottom > at.y():
            rect = rect_of(block, axis)
            if rect.left() - 1 <= at.x() <= rect.right() + 1:
                found = block
    return found


def labelled_block_at(picture: DisplayList, axis: Axis, at: QPointF) -> Block | None:
    """Returns the nearest block to the left of a position outside all blocks, if the block's label may extend to the
    position.
    """
    found, nearest = None, LABEL_WIDTH + 14.0
    for block in picture.blocks:
        if block.top > at.y():
            break
        if block.top + M.lane > at.y() and not block.is_bar:
            distance = at.x() - rect_of(block, axis).right()
            if 0 <= distance < nearest:
                found, nearest = block, distance
    return found


def edges_at(block: Block, axis: Axis, x: float) -> tuple[bool, bool]:
    """Returns whether `x` is at the start of a block, and whether `x` is at its end."""
    rect = rect_of(block, axis)
    reach = min(EDGE, rect.width() / 4)
    return x - rect.left() <= reach, rect.right() - x <= reach


def fit_at(fits: Sequence[Fit], picture: DisplayList, axis: Axis, at: QPointF) -> int | None:
    """Returns the index of the proposed booking at a position, or None if there is none."""
    for number, fit in enumerate(fits):
        boxes = boxes_of(fit.gpus, fit.start.timestamp(), fit.end.timestamp(), picture.lanes)
        for top, bottom, start, end in boxes:
            if top <= at.y() < bottom and axis.x_of(start) <= at.x() <= axis.x_of(end):
                return number
    return None


def shape_at(block: Block | None, picture: DisplayList, axis: Axis, at: QPointF, *, on_header: bool) -> Shape | None:
    """Returns the shape of the mouse cursor at a position, or None for the arrow.

    Args:
        on_header: Whether the position is on the headings of hosts, which are to the left of the first day.
    """
    if block is None:
        row = picture.lanes.row_at(at.y())
        is_pressed = row is not None and not row.is_lane and (on_header or row.kind == "folded")
        return Shape.PointingHandCursor if is_pressed else None
    if not block.booking.is_live:
        return None
    return Shape.SizeHorCursor if any(edges_at(block, axis, at.x())) else Shape.OpenHandCursor


def block_under(cursor: Cursor, picture: DisplayList) -> Block | None:
    """Returns the block under the keyboard cursor."""
    if cursor.lane >= len(picture.lanes.lanes):
        return None
    top = picture.lanes.lanes[cursor.lane].top
    return next(
        (
            block
            for block in picture.blocks
            if block.top <= top < block.bottom and block.start <= cursor.start < block.end
        ),
        None,
    )


def first_cursor(picture: DisplayList, axis: Axis, selected: str) -> Cursor:
    """Returns the initial keyboard cursor, one hour long.

    The cursor begins at the start of the selected booking. If no booking is selected, the cursor begins at the next
    full hour or, if today is not shown, at 9:00 on the first day.
    """
    block = next((one for one in picture.blocks if one.booking.id == selected), None)
    if block is not None:
        lane = picture.lanes.number_of(block.slots[0].id)
        return Cursor(lane, lane, block.start, block.start + HOUR)
    now = picture.now.timestamp() if picture.now else axis.starts[0]
    is_shown = axis.starts[0] <= now < axis.days[-1].end
    begin = now // HOUR * HOUR + HOUR if is_shown else axis.starts[0] + 9 * HOUR
    return Cursor(0, 0, begin, begin + HOUR)
