"""Paints racks: the header (state, GPUs and utilization), the slots, the footer (CPUs), and the tray."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter

from torchyard_gui.canvas import labels, paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.level_of_detail import Level
from torchyard_gui.canvas.live_state import HostLiveState
from torchyard_gui.canvas.racks.layout import LINE, PAD, TRAY_MOST
from torchyard_gui.canvas.racks.rack_content import RackContent
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

RADIUS = M.radius
SHADE = 3
"""How far a rack's shadow extends below the rack, in pixels."""


def paint_body(painter: QPainter, rack: RackContent) -> None:
    rect = QRectF(0.5, 0.5, rack.layout.width - 1, rack.layout.height - 1)
    painter.setPen(Qt.PenStyle.NoPen)
    if rack.group is not None:
        painter.setBrush(theme().brush("track"))
        painter.setPen(paint_cache.outline("line"))
        painter.drawRoundedRect(rect, RADIUS, RADIUS)
        return
    if not rack.is_tray:
        for reach, alpha in ((SHADE, 0.04), (1, 0.07)):
            painter.setBrush(theme().color("shadow", alpha))
            painter.drawRoundedRect(rect.translated(0, reach), RADIUS, RADIUS)
    painter.setBrush(theme().brush("s1" if rack.is_tray else "s2"))
    painter.setPen(paint_cache.outline("line", 1, dashed=True) if rack.is_tray else paint_cache.outline("hair"))
    painter.drawRoundedRect(rect, RADIUS, RADIUS)


def paint_header(
    painter: QPainter, rack: RackContent, host: HostLiveState | None, use: str, level: Level, live: bool
) -> None:
    """Paints the header with the state, name, GPU models and use of a host. At a low zoom, the models are omitted.

    The header of a group's frame contains the group's name and number of replicas.
    """
    if rack.group is not None:
        _paint_group_header(painter, rack, use, level)
        return
    mark = host_mark(rack, host, live)
    if level is Level.COARSE:
        paint_cache.put_mark(painter, mark, PAD - 4, 8, 24)
        use = labels.short_use(rack)
        use_from = rack.layout.width - PAD - paint_cache.width_of(use, "small", 0, 20)
        name = paint_cache.elided(_name(rack), int(use_from - PAD - 30), "strong", 0, 24)
        paint_cache.write(painter, PAD + 24, 29, name, "text", "strong", 0, 24)
        paint_cache.write(painter, use_from, 28, use, "text2", "small", 0, 20)
        return
    baseline = 23.0
    paint_cache.put_mark(painter, mark, PAD - 3, 11, 15)
    right = rack.layout.width - PAD
    use = _fitting(rack, use, right - PAD - 18)
    use_from = right - paint_cache.width_of(use, "small")
    paint_cache.write(painter, use_from, baseline, use, "text2", "small")
    x = PAD + 18.0
    name = paint_cache.elided(_name(rack), int(use_from - x - 10), "strong")
    paint_cache.write(painter, x, baseline, name, "text", "strong")
    x += paint_cache.width_of(name, "strong") + 9
    kinds = paint_cache.elided(labels.gpu_kinds(rack), int(use_from - x - 10), "small")
    if len(kinds) > 2:
        paint_cache.write(painter, x, baseline, kinds, "text3", "small")


def _paint_group_header(painter: QPainter, rack: RackContent, use: str, level: Level) -> None:
    coarse = level is Level.COARSE
    baseline, pixels, small = (29.0, 24, 20) if coarse else (23.0, 0, 0)
    use_from = rack.layout.width - PAD - paint_cache.width_of(use, "small", 0, small)
    name = paint_cache.elided(_name(rack), int(use_from - PAD - 10), "strong", 0, pixels)
    paint_cache.write(painter, PAD, baseline, name, "text", "strong", 0, pixels)
    paint_cache.write(painter, use_from, baseline, use, "text2", "small", 0, small)


def _fitting(rack: RackContent, use: str, room: float) -> str:
    """Returns the text about the use of the rack, or a shorter text if the header is too narrow for the full one."""
    beside = (
        paint_cache.width_of(_name(rack), "strong") + 9 + paint_cache.width_of(labels.gpu_kinds(rack), "small") + 10
    )
    if beside + paint_cache.width_of(use, "small") > room:
        use = labels.short_rack_use(rack) or use
    return paint_cache.elided(use, 190, "small")


def host_mark(rack: RackContent, host: HostLiveState | None, live: bool) -> str:
    if rack.is_tray:
        return "warning"
    if rack.group is not None:
        return "ok"
    if rack.cluster and not rack.node and rack.checked and not (host is not None and host.is_unknown):
        return "planned"
    if host is not None:
        return host.mark or host.state
    return "ok" if rack.checked and (live or rack.use_known) else "unknown"


def _name(rack: RackContent) -> str:
    return labels.rack_name(rack)


def paint_slot(
    painter: QPainter, box: Box, gpu: int, holder: str | None, level: Level, *, unknown: bool = False
) -> None:
    """Paints a slot without a chip, with the number of its GPU.

    If it is unknown whether the GPU is in use, the outline is dashed. If the GPU is in use, the slot is hatched and
    shows the text `holder` instead of the number. At a low zoom, the slot has no text.
    """
    rect = QRectF(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1)
    unknown = unknown and holder is None
    painter.setPen(paint_cache.outline("unknown", 1, dashed=True) if unknown else paint_cache.outline("hair"))
    painter.setBrush(theme().brush("s1"))
    painter.drawRoundedRect(rect, M.radius_small, M.radius_small)
    if holder is not None:
        painter.setBrush(paint_cache.hatching("hair"))
        painter.drawRoundedRect(rect, M.radius_small, M.radius_small)
    if level is Level.COARSE:
        return
    if holder is None:
        text = f"{gpu} ?" if unknown else str(gpu)
        x = box.x + (box.width - paint_cache.width_of(text, "small")) / 2
        paint_cache.write(painter, x, box.y + box.height / 2 + 4, text, "text3", "small")
        return
    lines = holder.split("\n")[:2]
    baseline = box.y + (17 if len(lines) > 1 else 24)
    for number, line in enumerate(lines):
        weight = 600 if number == 0 and len(lines) > 1 else 0
        text = paint_cache.elided(line, int(box.width - 12), "tiny", weight)
        paint_cache.write(painter, box.x + 8, baseline + 14 * number, text, "text2", "tiny", weight)


def paint_footer(painter: QPainter, rack: RackContent) -> None:
    """Paints the footer with the CPUs and the memory, unless the rack is a cluster's node with unknown CPUs."""
    layout = rack.layout
    if rack.cluster and rack.cpus is None:
        return
    painter.setPen(paint_cache.outline("hair"))
    painter.drawLine(QPointF(PAD, layout.rule + 0.5), QPointF(layout.width - PAD, layout.rule + 0.5))
    baseline = layout.footer.y + 20
    x = _pair(painter, PAD, baseline, labels.translate("Canvas", "CPU"), labels.cpu_value(rack))
    memory = labels.memory_value(rack)
    if memory:
        _pair(painter, x + 16, baseline, labels.translate("Canvas", "RAM"), memory)


def _pair(painter: QPainter, x: float, baseline: float, label: str, value: str) -> float:
    paint_cache.write(painter, x, baseline, label, "text3", "tiny", 600)
    x += paint_cache.width_of(label, "tiny", 600) + 6
    paint_cache.write(painter, x, baseline, value, "text2", "tiny")
    return x + paint_cache.width_of(value, "tiny")


def paint_reasons(painter: QPainter, rack: RackContent, lines: tuple[str, ...]) -> None:
    """Paints the reasons why the tray's replicas are not placed, and the number of chips that are not shown."""
    box = rack.layout.words
    if box is not None:
        for number, line in enumerate(lines):
            paint_cache.write(painter, box.x, box.y + 14 + number * LINE, line, "text2", "small")
    if len(rack.chips) > TRAY_MOST:
        text = labels.more(len(rack.chips) - TRAY_MOST)
        paint_cache.write(painter, PAD, rack.layout.height - PAD - 4, text, "text3", "small")
