"""Paints racks as tiles: the name, and a cell for each GPU and for each replica without a GPU.

In an edited topology, a cell shows the role of the replica. In a live run, the shade of the cell shows the load.
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter

from torchyard_gui.canvas import labels, paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.rack_content import RackContent
from torchyard_gui.canvas.racks.rack_painting import host_mark
from torchyard_gui.theme.theme import theme

STEPS = 5
"""The number of steps between the shade of an idle GPU and that of a GPU under full load."""
TROUBLE = ("fail", "wait")
BADGE = 0.86
"""Size of a role's badge in a cell, as a fraction of the cell."""
BADGE_FROM = 7.0
"""Minimum size of a badge in screen pixels. If a badge would be smaller, part of the cell is filled instead, depending
on the role.
"""


def paint_tile(
    painter: QPainter,
    rack: RackContent,
    host: HostLiveState | None,
    states: Mapping[str, ReplicaLiveState] | None,
    selected: frozenset[str],
    zoom: float,
    moved: frozenset[str] = frozenset(),
) -> None:
    """Paints a rack as a tile, in the rack's coordinates.

    Text, gaps and corners have the same size on the screen at any `zoom`.
    """
    members = states if states is not None else {}
    looks = [members[chip.name] for chip in rack.chips if chip.name in members]
    trouble = next((tint for tint in TROUBLE if any(tint_of(look) == tint for look in looks)), "")
    unknown = (host is not None and host.is_unknown) or (bool(looks) and all(look.is_unknown for look in looks))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(paint_cache.outline(trouble or "hair"))
    painter.setBrush(theme().brush("s2"))
    radius = 4 / zoom
    painter.drawRoundedRect(QRectF(0, 0, rack.layout.width, rack.layout.height), radius, radius)
    _paint_cells(painter, rack, states, selected, zoom, unknown, moved)
    if zoom >= NO_NAME_BELOW:
        _paint_name(painter, rack, _mark(rack, host, trouble, unknown, states is not None), zoom)


def tint_of(look: ReplicaLiveState) -> str:
    """Returns the tint of a replica with a problem, "fail" or "wait"; returns "" if there is none."""
    if look.is_unknown:
        return ""
    return look.tint or ("fail" if look.state == "failed" else "")


def _mark(rack: RackContent, host: HostLiveState | None, trouble: str, unknown: bool, live: bool) -> str:
    if trouble:
        return {"fail": "failed", "wait": "warning"}[trouble]
    if unknown:
        return "unknown"
    state = host_mark(rack, host, live)
    return "" if state == "ok" else state


def _paint_name(painter: QPainter, rack: RackContent, mark: str, zoom: float) -> None:
    painter.save()
    painter.scale(1 / zoom, 1 / zoom)
    width = rack.layout.width * zoom
    if mark:
        width -= 16
        paint_cache.put_mark(painter, mark, width, 3, 13)
    name = paint_cache.elided(labels.rack_name(rack), int(width - PAD - 2), "tiny")
    paint_cache.write(painter, PAD, NAME_HEIGHT - 3, name, "text", "tiny")
    painter.restore()


def _paint_cells(
    painter: QPainter,
    rack: RackContent,
    states: Mapping[str, ReplicaLiveState] | None,
    selected: frozenset[str],
    zoom: float,
    unknown: bool,
    moved: frozenset[str],
) -> None:
    roles = {chip.name: chip.role for chip in rack.chips}
    rings: list[QRectF] = []
    dashed: list[QRectF] = []
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(Qt.PenStyle.NoPen)
    for name, box in cells(rack, zoom):
        rect = QRectF(*box)
        look = states.get(name) if states is not None else None
        if name and (unknown or (look is not None and look.is_unknown)):
            painter.fillRect(rect, theme().color("s1"))
            brush = paint_cache.hatching("line")
            painter.save()
            painter.translate(rect.topLeft())
            painter.scale(0.7 / zoom, 0.7 / zoom)
            painter.fillRect(QRectF(0, 0, rect.width() * zoom / 0.7, rect.height() * zoom / 0.7), brush)
            painter.restore()
        else:
            role = roles.get(name, "")
            size = min(rect.width(), rect.height()) * BADGE
            has_badge = bool(role) and states is None and size * zoom >= BADGE_FROM
            if not role or states is not None:
                painter.fillRect(rect, _shade(name, look))
            elif has_badge:
                painter.fillRect(rect, paint_cache.mixed(role, "s2", 0.75))
                middle = rect.center()
                paint_cache.put_badge(painter, role, middle.x() - size / 2, middle.y() - size / 2, size)
            else:
                _paint_small(painter, rect, role)
        if name in selected:
            rings.append(rect)
        elif name in moved:
            dashed.append(rect)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if rings:
        painter.setPen(paint_cache.outline("accent", 2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for ring in rings:
            painter.drawRect(ring)
    if dashed:
        painter.setPen(paint_cache.outline("accent", 2, True))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for ring in dashed:
            painter.drawRect(ring)


_PARTS = {
    "worker": ((0.0, 0.0, 1.0, 1.0),),
    "chief": ((0.0, 0.0, 0.35, 1.0), (0.65, 0.0, 0.35, 1.0)),
    "ps": ((0.0, 0.5, 1.0, 0.5),),
    "reducer": ((0.3, 0.0, 0.4, 1.0),),
    "evaluator": ((0.0, 0.0, 0.5, 1.0),),
}
"""The filled parts of a cell without space for a badge, by role, as fractions (left, top, width, height)."""


def _paint_small(painter: QPainter, rect: QRectF, role: str) -> None:
    painter.fillRect(rect, paint_cache.mixed(role, "s2", 0.75))
    for left, top, width, height in _PARTS[role]:
        part = QRectF(
            rect.x() + left * rect.width(), rect.y() + top * rect.height(), width * rect.width(), height * rect.height()
        )
        painter.fillRect(part, paint_cache.mixed(role, "s2", 0.2))


def _shade(name: str, look: ReplicaLiveState | None) -> QColor:
    if not name or look is None:
        return theme().color("track")
    tint = tint_of(look)
    if tint:
        return theme().color(tint)
    if look.meter is None:
        return paint_cache.mixed("track", "meter", 0.5 if look.state == "running" else 0.15)
    return paint_cache.mixed("track", "meter", (1 + round(min(max(look.meter, 0), 1) * STEPS)) / (STEPS + 1))


NAME_HEIGHT = 17
"""Height of the name in screen pixels."""
PAD = 5
GAP = 1.5
NO_NAME_BELOW = 0.12
"""The zoom below which names are omitted, because they would not be readable, and the cells use their space."""
ACROSS = 4


def cells(rack: RackContent, zoom: float) -> list[tuple[str, Box]]:
    """Returns the cells of slots and of replicas without a slot, each with the name of its replica, or "" if the slot
    is free.
    """
    of_gpu = {gpu: chip.name for chip in rack.chips for gpu in chip.gpus}
    names = [of_gpu.get(gpu, "") for gpu in rack.layout.slots]
    names += [chip.name for chip in rack.chips if not chip.gpus or rack.is_tray or rack.group is not None]
    if not names:
        return []
    pad, gap = PAD / zoom, GAP / zoom
    top = (NAME_HEIGHT + 2) / zoom if zoom >= NO_NAME_BELOW else pad
    across = min(len(names), ACROSS) if len(names) <= 4 * ACROSS else -(-len(names) // 4)
    if rack.group is not None:
        across = min(len(names), rack.layout.across)
    rows = -(-len(names) // across)
    width = (rack.layout.width - 2 * pad + gap) / across
    height = max((rack.layout.height - top - pad + gap) / rows, gap)
    return [
        (name, Box(pad + at % across * width, top + at // across * height, max(width - gap, 0), max(height - gap, 0)))
        for at, name in enumerate(names)
    ]
