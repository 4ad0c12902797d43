"""Graphics item of a host, of the tray or of the frame of a group. The item also draws the chips on the rack.

A single item per host keeps the canvas fast with a thousand replicas. Qt caches the item's pixmap (device cache), so
panning and dragging run no Python code of the item. Unless racks are shown as tiles, a changed chip repaints only its
own rectangle and, if the use of the rack changes, the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QGraphicsItem, QGraphicsRectItem, QStyleOptionGraphicsItem, QWidget

from torchyard_gui.canvas import labels, paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.level_of_detail import Level, level_of
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.chip_painting import ChipState, paint_chip
from torchyard_gui.canvas.racks.layout import INNER
from torchyard_gui.canvas.racks.rack_content import ChipContent, RackContent
from torchyard_gui.canvas.racks.rack_painting import (
    SHADE,
    paint_body,
    paint_footer,
    paint_header,
    paint_reasons,
    paint_slot,
)
from torchyard_gui.canvas.racks.tile_painting import cells, paint_tile

ROUND = 5
"""Distance in pixels by which rings extend beyond a chip."""


class RackItem(QGraphicsRectItem):
    """Graphics item of one RackContent. It derives from QGraphicsRectItem so that Qt computes its bounds in C++."""

    def __init__(self, content: RackContent):
        super().__init__()
        self.content = content
        self.host: HostLiveState | None = None
        self._states: Mapping[str, ReplicaLiveState] | None = None
        self._chips: dict[str, ChipContent] = {chip.name: chip for chip in content.chips}
        self._marks: dict[str, ChipState] = {}
        self._zoom = 1.0
        self._is_tile = False
        self.setPen(Qt.PenStyle.NoPen)
        self.setRect(self._bounds())
        self.setFlag(QGraphicsItem.GraphicsItemFlag.ItemUsesExtendedStyleOption)
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)

    def set_content(self, content: RackContent) -> None:
        if content == self.content:
            return
        self.content = content
        self.setRect(self._bounds())
        self._chips = {chip.name: chip for chip in content.chips}
        self._marks = {name: mark for name, mark in self._marks.items() if name in self._chips}
        self.update()

    def set_host(self, host: HostLiveState | None) -> None:
        if host != self.host:
            self.host = host
            self.update()

    def set_states(self, states: Mapping[str, ReplicaLiveState] | None) -> None:
        """Sets the live states of the replicas; None shows the edited topology."""
        old, self._states = self._states, states
        if states is None or old is None:
            if states is not old:
                self.update()
            return
        changed = [name for name in self._chips if states.get(name) != old.get(name)]
        if changed:
            self._update_chips(changed)
            if labels.use_of(self.content, self.host, old) != labels.use_of(self.content, self.host, states):
                self.update(QRectF(0, 0, self.content.layout.width, self.content.layout.rule))

    def set_mark(self, name: str, mark: ChipState) -> None:
        """Sets the state in which a chip is shown, such as selected or focused."""
        if self._marks.get(name, ChipState()) != mark:
            self._marks[name] = mark
            self._update_chips([name])

    def set_zoom(self, zoom: float) -> None:
        """Sets the zoom, which determines the level of detail."""
        tiles = Level.TILE in (level_of(zoom), level_of(self._zoom))
        if tiles or level_of(zoom) is not level_of(self._zoom):
            self.update()
        self._zoom, self._is_tile = zoom, level_of(zoom) is Level.TILE

    # Positions and boxes in the following methods are in item coordinates.

    def _bounds(self) -> QRectF:
        layout = self.content.layout
        return QRectF(-2, -2, layout.width + 4, layout.height + 4 + SHADE)

    def pieces(self, name: str) -> tuple[Box, ...]:
        """Returns the boxes of a replica's chip or, if racks are shown as tiles, of its cells. The tuple is empty if
        the replica is not drawn.
        """
        if level_of(self._zoom) is Level.TILE:
            return tuple(box for cell, box in cells(self.content, self._zoom) if cell == name)
        return self.content.layout.chips.get(name, ())

    def chip_at(self, x: float, y: float) -> str:
        """Returns the name of the replica at a point, or "" if there is none."""
        if level_of(self._zoom) is Level.TILE:
            return next((name for name, box in cells(self.content, self._zoom) if box.has(x, y)), "")
        boxes = self.content.layout.chips.items()
        return next((name for name, pieces in boxes if any(box.has(x, y) for box in pieces)), "")

    def slot_at(self, x: float, y: float) -> int | None:
        """Returns the index of the GPU whose slot is at a point.

        Returns None if there is no slot at the point, or if racks are shown as tiles.
        """
        return None if self._is_tile else self.content.layout.slot_at(x, y)

    def tooltip_at(self, x: float, y: float) -> str:
        """Returns the tool tip of a slot or, outside the slots, that of the rack.

        Returns "" for the tray, for frames of groups, and for chips. The scene provides the tool tips of chips.
        """
        if self.content.is_tray or self.content.group is not None or self.chip_at(x, y):
            return ""
        slot = self.slot_at(x, y)
        if slot is not None:
            held = self.host.held.get(slot) if self.host is not None else None
            return held or labels.slot_sentence(self.content, slot)
        use = labels.use_of(self.content, self.host, self._states)
        return labels.rack_sentence(self.content, use, self.host.name if self.host is not None else "")

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        level = level_of(self._zoom)
        if level is Level.TILE:
            selected = frozenset(name for name, mark in self._marks.items() if mark.selected)
            moved = frozenset(name for name, mark in self._marks.items() if mark.moved)
            paint_tile(painter, self.content, self.host, self._states, selected, self._zoom, moved)
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        exposed = option.exposedRect
        seen = Box(exposed.x(), exposed.y(), exposed.width(), exposed.height())
        layout = self.content.layout
        paint_body(painter, self.content)
        if seen.y < layout.slots_top:
            use = labels.use_of(self.content, self.host, self._states)
            live = self._states is not None
            paint_header(painter, self.content, self.host, use, level, live)
            if self.content.is_tray and level is Level.FULL:
                paint_reasons(painter, self.content, reason_lines(self.content.reasons))
        is_host = not self.content.is_tray and self.content.group is None
        if is_host and level is Level.FULL and seen.bottom > layout.rule:
            paint_footer(painter, self.content)
        self._paint_slots(painter, seen, level)
        self._paint_chips(painter, seen, level)

    def _paint_slots(self, painter: QPainter, seen: Box, level: Level) -> None:
        taken = {gpu for chip in self.content.chips for gpu in chip.gpus}
        holders = self.host.holders if self.host is not None else {}
        # A live run shows the run's own use of GPUs, not the users that the last check of the hosts found.
        live = self._states is not None
        for gpu, box in self.content.layout.slots.items():
            if gpu in taken or not box.meets(seen):
                continue
            holder = holders.get(gpu)
            if holder is None and not live and gpu in self.content.busy:
                holder = labels.holder(self.content.users.get(gpu, ""), gpu)
            paint_slot(painter, box, gpu, holder, level, unknown=not live and not self.content.use_known)

    def _paint_chips(self, painter: QPainter, seen: Box, level: Level) -> None:
        live = self._states is not None
        for name, boxes in self.content.layout.chips.items():
            if any(box.grown(ROUND).meets(seen) for box in boxes):
                look = self._look(name)
                mark = self._marks.get(name, ChipState())
                paint_chip(painter, boxes, self._chips[name], look, mark, level, live)

    def _look(self, name: str) -> ReplicaLiveState | None:
        """Returns the live state of a replica. The state is unknown if the host does not answer."""
        look = self._states.get(name) if self._states is not None else None
        if look is None or look.is_unknown or self.host is None or not self.host.is_unknown:
            return look
        return replace(look, state="unknown", stale_since=self.host.since)

    def _update_chips(self, names: list[str]) -> None:
        if level_of(self._zoom) is Level.TILE:
            self.update()
            return
        for name in names:
            for box in self.content.layout.chips.get(name, ()):
                self.update(QRectF(*box.grown(ROUND)))


MOST_LINES = 6


def reason_lines(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Wraps the reasons why replicas could not be placed into lines for the tray, and keeps at most `MOST_LINES`. The
    list of problems contains the reasons in full.
    """
    lines = [line for reason in reasons for line in paint_cache.wrapped(reason, INNER, "small")]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"{lines[MOST_LINES - 1]} …"]
    return tuple(lines)
