"""Paints chips, each with a badge, a number, its GPU or a metric, and a meter.

The chip of a replica with a problem is tinted and shows the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter

from torchyard_gui.canvas import labels, paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.level_of_detail import Level
from torchyard_gui.canvas.live_state import ReplicaLiveState
from torchyard_gui.canvas.racks.rack_content import ChipContent
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

RADIUS = M.radius_small
SIDE = 6
"""Horizontal padding of a chip in pixels."""
TEXT_X = SIDE + M.badge + 3
TEXT_END = 4
"""Distance in pixels between a chip's second line of text and the right border of the chip."""
MARK = 13
COARSE_METER = 6
"""Height of a chip's meter at a low zoom, in pixels."""
STATE_MARKS = {"succeeded", "stopped", "pending", "waiting", "starting", "restarting", "stopping"}
"""States whose mark is shown on a chip that is not tinted. A running replica has no mark."""


@dataclass(frozen=True, slots=True)
class ChipState:
    """What determines the appearance of a chip besides its content: whether the chip is selected, hovered, focused or
    dragged, and whether its replica has a problem or has moved.
    """

    selected: bool = False
    hovered: bool = False
    focused: bool = False
    """Whether the chip has the keyboard focus. The ring of the focus differs from that of the selection."""
    lifted: bool = False
    """Whether the chip is being dragged. If so, it is pale, because the preview at the pointer also shows it."""
    problem: str = ""
    moved: bool = False
    """Whether the planner has just moved the replica."""


NORMAL = ChipState()


def paint_chip(
    painter: QPainter,
    boxes: tuple[Box, ...],
    chip: ChipContent,
    look: ReplicaLiveState | None,
    state: ChipState = NORMAL,
    level: Level = Level.FULL,
    live: bool = False,
) -> None:
    """Paints all pieces of a replica's chip. The first piece shows everything, the others only badge and number."""
    if state.lifted:
        painter.setOpacity(0.35)
    tint = _tint(look)
    for box in boxes:
        _paint_body(painter, box, look, state, tint)
    if level is Level.COARSE:
        _paint_coarse(painter, boxes[0], chip, look, tint)
    elif boxes[0].height < M.slot_height:
        _paint_low(painter, boxes[0], chip, look, state, tint)
    else:
        _paint_words(painter, boxes[0], chip, look, state, tint, live)
    if look is not None and look.meter is not None and not look.is_unknown:
        _paint_meter(painter, meter_box(boxes[0], chip, level), look.meter, tint)
    for box in boxes[1:]:
        _paint_more(painter, box, chip, level)
    if state.focused:
        painter.setPen(paint_cache.outline("text", M.focus_ring))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(QRectF(*boxes[0].grown(3)), RADIUS + 3, RADIUS + 3)
    if state.lifted:
        painter.setOpacity(1)


def _tint(look: ReplicaLiveState | None) -> str:
    """Returns the tint of a replica with a problem, "wait" or "fail"; returns "" if there is none."""
    if look is None or look.is_unknown:
        return ""
    return look.tint or ("fail" if look.state == "failed" else "")


def _paint_body(painter: QPainter, box: Box, look: ReplicaLiveState | None, state: ChipState, tint: str) -> None:
    rect = QRectF(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1)
    unknown = look is not None and look.is_unknown
    fill = "accent_soft" if state.selected else f"{tint}_soft" if tint else "s2"
    painter.setPen(paint_cache.outline("unknown" if unknown else tint or "line", 1.0, unknown))
    painter.setBrush(theme().brush("hover" if state.hovered and fill == "s2" else fill))
    painter.drawRoundedRect(rect, RADIUS, RADIUS)
    if unknown:
        painter.setBrush(paint_cache.hatching("hair"))
        painter.drawRoundedRect(rect, RADIUS, RADIUS)
    if state.moved and not state.selected:
        painter.setPen(paint_cache.outline("accent", 2, True))
        painter.setBrush(theme().brush("accent_soft"))
        painter.drawRoundedRect(rect, RADIUS, RADIUS)
    if state.selected:
        painter.setPen(paint_cache.outline("accent", 2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(QRectF(*box), RADIUS + 1, RADIUS + 1)
        if tint:
            painter.setPen(paint_cache.outline(tint))
            painter.drawRoundedRect(rect.adjusted(2, 2, -2, -2), RADIUS - 1, RADIUS - 1)


def _paint_words(
    painter: QPainter,
    box: Box,
    chip: ChipContent,
    look: ReplicaLiveState | None,
    state: ChipState,
    tint: str,
    live: bool,
) -> None:
    top = box.y + (box.height - M.slot_height) / 2 if box.height > M.slot_height else box.y
    paint_cache.put_badge(painter, chip.role, box.x + SIDE, top + 12, M.badge)
    x = box.x + TEXT_X
    right = box.right - SIDE + 2
    text, color, weight = _second_line(chip, look, tint)
    paint_cache.write(painter, x, top + (17 if text else 24.5), str(chip.index), "text", "strong")
    used_to = x + paint_cache.width_of(str(chip.index), "strong")
    mark = _mark_of(look, tint, state)
    if mark:
        right -= MARK
        paint_cache.put_mark(painter, mark, right, top + 6, MARK)
        right -= 4
    if chip.pinned and not live and used_to + 4 < right - 11:
        right -= 12
        paint_cache.put_pin(painter, right, top + 6, 12)
        right -= 4
    if len(chip.gpus) > 1:
        count = labels.gpu_count(len(chip.gpus))
        width = paint_cache.width_of(count, "tiny")
        if used_to + 6 < right - width:
            paint_cache.write(painter, right - width, top + 16, count, "text3", "tiny")
            right -= width + 4
    if text:
        text = fitting(text, look, int(box.right - TEXT_END - x), weight)
        paint_cache.write(painter, x, top + 30, text, color, "tiny", weight)


def _paint_low(
    painter: QPainter,
    box: Box,
    chip: ChipContent,
    look: ReplicaLiveState | None,
    state: ChipState,
    tint: str,
) -> None:
    """Paints a low chip with a single line of text, for a replica that runs on CPUs."""
    paint_cache.put_badge(painter, chip.role, box.x + SIDE, box.y + 6, M.badge)
    x = box.x + TEXT_X
    baseline = box.y + 18.5
    paint_cache.write(painter, x, baseline, str(chip.index), "text", "strong")
    right = box.right - SIDE
    mark = _mark_of(look, tint, state)
    if mark:
        right -= MARK
        paint_cache.put_mark(painter, mark, right, box.y + 7.5, MARK)
        right -= 4
    if chip.pinned and look is None:
        right -= 12
        paint_cache.put_pin(painter, right, box.y + 8, 12)
        right -= 4
    text, color, weight = _second_line(chip, look, tint)
    if text:
        room = int(right - x - paint_cache.width_of(str(chip.index), "strong") - 8)
        text = fitting(text, look, room, weight)
        right -= paint_cache.width_of(text, "tiny", weight)
        paint_cache.write(painter, right, baseline - 0.5, text, color, "tiny", weight)


def fitting(text: str, look: ReplicaLiveState | None, room: int, weight: int) -> str:
    """Returns the second line of a chip's text, shortened to the available width.

    If the line does not fit and the replica's state is unknown, the line is replaced with the time of the last report,
    if this time is known.
    """
    if look is not None and paint_cache.width_of(text, "tiny", weight) > room:
        text = look.stale_since if look.is_unknown and look.stale_since else labels.shorter(text)
    return paint_cache.elided(text, room, "tiny", weight)


def _second_line(chip: ChipContent, look: ReplicaLiveState | None, tint: str) -> tuple[str, str, int]:
    """Returns the text, the colour token and the font weight of a chip's second line of text."""
    if look is None:
        return labels.where(chip), "text2", 0
    if look.is_unknown:
        return labels.last_heard(look), "text2", 0
    if tint:
        return look.cause or look.metric or labels.short_state_word(look.state), tint, 600
    return look.metric or (labels.short_state_word(look.state) if look.state in STATE_MARKS else ""), "text2", 0


def _mark_of(look: ReplicaLiveState | None, tint: str, state: ChipState) -> str:
    if look is not None:
        if look.is_unknown:
            return "unknown"
        if tint == "fail":
            return "failed"
        if tint == "wait":
            return "waiting" if look.state in ("pending", "waiting") else "warning"
        return {"pending": "waiting"}.get(look.state, look.state) if look.state in STATE_MARKS else ""
    return "warning" if state.problem else ""


def _paint_coarse(painter: QPainter, box: Box, chip: ChipContent, look: ReplicaLiveState | None, tint: str) -> None:
    """Paints a chip at a low zoom, with its badge and number enlarged.

    A wide chip also has a mark for a problem or an unknown state.
    """
    size = _coarse_badge(box)
    middle = box.y + box.height / 2
    paint_cache.put_badge(painter, chip.role, box.x + 4, middle - size / 2, size)
    text, pixels = _coarse_number(chip)
    paint_cache.write(painter, box.x + size + 8, middle + pixels * 0.36, text, tint or "text", "strong", 0, pixels)
    mark = "unknown" if look is not None and look.is_unknown else {"fail": "failed", "wait": "warning"}.get(tint, "")
    if mark and box.width > M.slot_width:
        paint_cache.put_mark(painter, mark, box.right - 28, middle - 12, 24)


def _coarse_badge(box: Box) -> float:
    return min(24.0, box.height - 6)


def _coarse_number(chip: ChipContent) -> tuple[str, int]:
    """Returns the text of a chip's number at a low zoom, and its font size in pixels."""
    text = str(chip.index)
    return text, 18 if len(text) < 4 else 15


def meter_box(box: Box, chip: ChipContent, level: Level) -> QRectF:
    """Returns the rectangle of a chip's meter, which is below the text, or beside it in a low chip at a low zoom."""
    inset = 4
    height = COARSE_METER if level is Level.COARSE else M.meter
    if level is Level.COARSE and box.height < M.slot_height:
        text, pixels = _coarse_number(chip)
        left = box.x + _coarse_badge(box) + 16 + paint_cache.width_of(text, "strong", 0, pixels)
        return QRectF(left, box.y + (box.height - height) / 2, max(0.0, box.right - 2 * inset - left), height)
    return QRectF(box.x + inset, box.bottom - inset - height + 1, box.width - 2 * inset, height)


def _paint_meter(painter: QPainter, box: QRectF, meter: float, tint: str) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(theme().brush("track"))
    painter.drawRoundedRect(box, box.height() / 2, box.height() / 2)
    part = box.width() * min(max(meter, 0.0), 1.0)
    if part >= 1:
        painter.setBrush(theme().brush("wait" if tint == "wait" else "meter"))
        painter.drawRoundedRect(QRectF(box.x(), box.y(), part, box.height()), box.height() / 2, box.height() / 2)


def _paint_more(painter: QPainter, box: Box, chip: ChipContent, level: Level) -> None:
    """Paints a further piece of the chip of a replica whose GPUs are not adjacent, with a pale badge and number."""
    painter.save()
    painter.setOpacity(painter.opacity() * 0.55)
    paint_cache.put_badge(painter, chip.role, box.x + SIDE, box.middle[1] - M.badge / 2, M.badge)
    pixels = 13 if level is Level.FULL else 20
    baseline = box.middle[1] + pixels * 0.36
    paint_cache.write(painter, box.x + TEXT_X, baseline, str(chip.index), "text", "strong", 0, pixels)
    painter.restore()
