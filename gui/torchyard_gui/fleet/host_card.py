"""Paints the cards of the host list. A card shows a host with its state, GPUs, load and software, or a cluster. If
there is a problem, the card has a strip with the problem and a button.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QAbstractItemView, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from torchyard_core import formatting
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.host_status import CheckedEntry, GpuNow, HostStatus
from torchyard_gui.fleet.cluster_card import paint_jobs, paint_nodes, paint_slurm
from torchyard_gui.fleet.fingerprint import fingerprint_height
from torchyard_gui.fleet.host_list_model import STATUS, Entry, Index
from torchyard_gui.fleet.labels import (
    cpu_count,
    doing_word,
    fingerprints,
    gpu_kinds,
    heat_text,
    percent,
    place,
    sentence,
    since_forms,
    state_mark,
    state_word,
    tint,
    used_of,
    version,
)
from torchyard_gui.fleet.suggested_action import suggested_action
from torchyard_gui.fleet.wrapped_text import wrapped
from torchyard_gui.theme.marks import paint_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided

GAP = 8
"""Distance between cards in pixels."""
PAD = 14
BODY = 79
LINE = 19
BUTTON_ROOM = 116
STRIP_LINES = 3
METER_TEXT = 104
"""Minimum width in pixels of the text beside a meter. It aligns meters whose texts are shorter."""
METER_NAME = 54
"""Minimum width of the name of a meter in pixels."""
METER_GAP = 8
LEAST_METER = 12
"""Minimum width of a meter in pixels. A meter with less space is omitted."""
TEXT_LEFT = PAD - 6 + 24
"""Horizontal position, in pixels, of the text in the strip that shows a card's problem."""
KEY_NAME = 72
"""Width of the labels of fingerprints in pixels."""
COLUMN_GAP = 16
"""Distance between the columns of a card in pixels."""
COLUMNS = (0.26, 0.26, 0.3, 0.18)
"""Fractions of a card's width that its columns take: name and state, GPUs, load, software."""

_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class HostCard(QStyledItemDelegate):
    """Paints the rows of a host list. A card is as wide as the viewport."""

    def __init__(self, view: QAbstractItemView):
        super().__init__(view)
        self._view = view
        self.phase = 0.0
        """Position of the moving part of progress bars, 0 to 1."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        status = index.data(STATUS)
        # The height depends on the width of the viewport and not on the width in `option`, because the width in
        # `option` differs between callers.
        return QSize(0, BODY + _strip_height(status, self._view.viewport().width()) + GAP)

    def button_rect(self, status: CheckedEntry, card: QRect) -> QRect:
        """Returns the rectangle of the action button. The rectangle is empty if the card has no button."""
        height = _strip_height(status, card.width())
        if not height:
            return QRect()
        size = QSize(BUTTON_ROOM - PAD, 28)
        corner = QPoint(card.right() - PAD - size.width() + 4, card.top() + BODY + (height - GAP - size.height()) // 2)
        return QRect(corner, size)

    def fingerprint_rects(self, status: CheckedEntry, card: QRect) -> list[QRect]:
        """Returns the rectangles of a card's fingerprints, which are below the sentence about the problem."""
        if not _strip_height(status, card.width()):
            return []
        width = _text_width(card.width())
        top = card.top() + BODY - 2 + 6 + LINE * len(_wrapped(sentence(status), width))
        rects = []
        for _, key in fingerprints(status):
            height = _key_height(key, card.width())
            rects.append(QRect(card.left() + 6 + TEXT_LEFT + KEY_NAME, top, width - KEY_NAME, height - 2))
            top += height
        return rects

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        status: Entry = index.data(STATUS)
        rect: QRect = option.rect.adjusted(0, 0, 0, -GAP)
        state = option.state
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_background(painter, rect, state)
        name, *others = _columns(rect)
        self._paint_name(painter, name, status)
        if isinstance(status, ClusterStatus):
            for column, paint_part in zip(others, (paint_nodes, paint_jobs, paint_slurm), strict=True):
                paint_part(painter, column, status)
        else:
            for column, paint in zip(others, (self._paint_gpus, self._paint_load, self._paint_software), strict=True):
                paint(painter, column, status)
        self._paint_strip(painter, rect, status)
        if status.doing is not None:
            self._paint_progress(painter, rect, status)
        painter.restore()

    def _paint_background(self, painter: QPainter, rect: QRect, state: QStyle.StateFlag) -> None:
        look = theme()
        radius = look.metrics.radius
        selected = bool(state & QStyle.StateFlag.State_Selected)
        hovered = bool(state & QStyle.StateFlag.State_MouseOver)
        focused = bool(state & QStyle.StateFlag.State_HasFocus)
        outlined = selected or focused
        pen = QPen(look.pen("accent", 2) if outlined else look.pen("line" if hovered else "hair"))
        if focused and not selected:
            pen.setStyle(Qt.PenStyle.DashLine)
        painter.setPen(pen)
        painter.setBrush(look.brush("s2"))
        inset = 1 if outlined else 0.5
        painter.drawRoundedRect(QRectF(rect).adjusted(inset, inset, -inset, -inset), radius, radius)

    def _paint_name(self, painter: QPainter, rect: QRect, status: CheckedEntry) -> None:
        paint_state(painter, QRectF(rect.x(), rect.y() + 1.5, 16, 16), state_mark(status))
        text = rect.adjusted(24, 0, 0, 0)
        draw_elided(painter, _line(text, 0), status.name, "strong", "text")
        draw_elided(painter, _line(text, 2), place(status), "small", "text3")
        ink = tint(status) or ("unknown" if state_mark(status) == "unknown" else "text2")
        words = doing_word(status)
        if words:
            draw_elided(painter, _line(text, 1), words, "small", "text2")
            return
        drawn = draw_elided(painter, _line(text, 1), state_word(status), "small", ink)
        room = _line(text, 1).adjusted(drawn + 6, 0, COLUMN_GAP // 2, 0)
        metrics = painter.fontMetrics()
        fitting = (form for form in since_forms(status) if metrics.horizontalAdvance(form) <= room.width())
        draw_elided(painter, room, next(fitting, ""), "small", "text3")

    def _paint_gpus(self, painter: QPainter, rect: QRect, status: HostStatus) -> None:
        gpus = status.gpus
        if not gpus:
            known = status.facts.checked or status.sample is not None
            text = self.tr("no GPU") if known else self.tr("GPUs unknown")
            draw_elided(painter, _line(rect, 0), text, "body", "text3")
            return
        draw_elided(painter, _line(rect, 0), gpu_kinds(gpus), "body", "text2")
        cells = QRectF(rect.x(), rect.y() + LINE + 3, rect.width() - 62, 14)
        drawn = paint_gpu_cells(painter, cells, gpus)
        used = status.gpus_in_use
        if used is not None:
            words = self.tr("{used} in use").format(used=used) if used else self.tr("all free")
            draw_elided(painter, _line(rect, 1).adjusted(round(drawn) + 8, 0, 0, 0), words, "small", "text3")
        draw_elided(painter, _line(rect, 2), heat_text(gpus), "small", "text3")

    def _paint_load(self, painter: QPainter, rect: QRect, status: HostStatus) -> None:
        now = status.sample["host"] if status.sample is not None else None
        if now is not None:
            cpu, memory, used = now["cpu"], now["memory_mb"], now["memory_used_mb"]
            cpus = self.tr("{percent} of {cpus}").format(percent=percent(cpu), cpus=now["cpus"])
            part = used / memory if used is not None and memory else None
            meters = [
                Meter(self.tr("CPU"), None if cpu is None else cpu / 100, cpus),
                Meter(self.tr("Memory"), part, used_of(used, memory)),
            ]
            for number, bar in enumerate(meter_bars(rect, meters)):
                _paint_meter(painter, _line(rect, number), meters[number], bar)
            if (free := now.get("disk_free_gb")) is not None:
                disk = self.tr("{free} of disk free").format(free=formatting.memory(free * 1024))
                draw_elided(painter, _line(rect, 2), disk, "small", "text3")
            return
        facts = status.facts
        if facts.cpus is not None:
            draw_elided(painter, _line(rect, 0), cpu_count(facts.cpus), "body", "text2")
        if facts.memory_gb is not None:
            draw_elided(painter, _line(rect, 1), formatting.memory(facts.memory_gb * 1024), "small", "text3")

    def _paint_software(self, painter: QPainter, rect: QRect, status: HostStatus) -> None:
        if not status.facts.checked and status.check is None:
            return
        torch = status.facts.torch
        first = self.tr("torch {version}").format(version=torch) if torch else self.tr("no torch")
        python = version((status.found.get("python") or {}).get("version"))
        if status.check is not None and status.check.agent:
            agent = self.tr("agent {version}").format(version=status.check.agent["version"])
            draw_elided(painter, _line(rect, 2), agent, "small", "text3")
        if status.facts.checked:
            draw_elided(painter, _line(rect, 0), first, "body", "text2" if torch else "text3")
        if python:
            draw_elided(painter, _line(rect, 1), self.tr("Python {version}").format(version=python), "small", "text3")

    def _paint_strip(self, painter: QPainter, rect: QRect, status: CheckedEntry) -> None:
        height = _strip_height(status, rect.width())
        if not height:
            return
        look = theme()
        strip = QRect(rect.left() + 6, rect.top() + BODY - 2, rect.width() - 12, height - 4)
        token = tint(status)
        if token:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.brush(f"{token}_soft"))
            painter.drawRoundedRect(QRectF(strip), look.metrics.radius_small, look.metrics.radius_small)
        painter.setPen(look.pen("text"))
        painter.setFont(look.font("small"))
        text = strip.adjusted(TEXT_LEFT, 0, -BUTTON_ROOM - 4, 0)
        lines = _wrapped(sentence(status), text.width())
        keys = self.fingerprint_rects(status, rect)
        top = text.y() + (text.height() - LINE * len(lines)) // 2 if not keys else text.y() + 6
        for number, line in enumerate(lines):
            painter.drawText(QRect(text.x(), top + number * LINE, text.width(), LINE), int(_LEFT), line)
        for (name, _), where in zip(fingerprints(status), keys, strict=True):
            draw_elided(painter, QRect(text.x(), where.y(), KEY_NAME - 8, LINE), name, "small", "text2")

    def _paint_progress(self, painter: QPainter, rect: QRect, status: CheckedEntry) -> None:
        """Paints a thin bar at the lower edge of the card. It shows the progress of the activity, or an animation if
        the total is unknown.
        """
        doing = status.doing
        assert doing is not None
        look = theme()
        track = QRectF(rect.left() + PAD, rect.bottom() - 4, rect.width() - 2 * PAD, 3)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.brush("track"))
        painter.drawRoundedRect(track, 1.5, 1.5)
        part = QRectF(track)
        if doing.total:
            part.setWidth(track.width() * doing.done / doing.total)
        else:
            part.setWidth(track.width() / 5)
            part.moveLeft(track.left() + (track.width() - part.width()) * self.phase)
        painter.setBrush(look.brush("accent"))
        painter.drawRoundedRect(part, 1.5, 1.5)


def _columns(card: QRect) -> list[QRect]:
    """Returns the rectangles of a card's columns."""
    found = []
    x, room = card.left() + PAD, card.width() - 2 * PAD
    for share in COLUMNS:
        width = round(room * share)
        found.append(QRect(x, card.top() + 11, width - COLUMN_GAP, 3 * LINE))
        x += width
    return found


def _line(rect: QRect, number: int) -> QRect:
    return QRect(rect.x(), rect.y() + number * LINE, rect.width(), LINE)


@dataclass(frozen=True)
class Meter:
    """A bar that shows a fraction from 0 to 1, with a name to its left and a value to its right."""

    name: str
    share: float | None
    text: str


def meter_bars(rect: QRect, meters: Sequence[Meter]) -> list[QRectF]:
    """Returns the bars of meters on consecutive lines.

    All bars are equally wide, and lie between the names and the values. If the longest value leaves too little space,
    the bars are empty.
    """
    metrics = QFontMetrics(theme().font("small"))
    name = max(METER_NAME, *(metrics.horizontalAdvance(meter.name) + METER_GAP for meter in meters))
    taken = max(metrics.horizontalAdvance(meter.text) for meter in meters) + METER_GAP
    width = rect.width() - name - max(METER_TEXT, taken)
    if width < LEAST_METER:
        width = rect.width() - name - taken
    shown = width if width >= LEAST_METER else 0
    return [QRectF(rect.x() + name, _line(rect, number).center().y() - 1, shown, 4) for number in range(len(meters))]


def _paint_meter(painter: QPainter, rect: QRect, meter: Meter, bar: QRectF) -> None:
    look = theme()
    draw_elided(painter, rect, meter.name, "small", "text3")
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(look.brush("track"))
    if not bar.isEmpty():
        painter.drawRoundedRect(bar, 2, 2)
        if meter.share:
            painter.setBrush(look.brush("meter"))
            painter.drawRoundedRect(QRectF(bar.x(), bar.y(), max(4.0, bar.width() * min(1.0, meter.share)), 4), 2, 2)
    painter.setFont(look.font("small"))
    painter.setPen(look.pen("text2"))
    painter.drawText(rect, int(_RIGHT), meter.text)


def _strip_height(status: CheckedEntry, width: int) -> int:
    text = sentence(status)
    if not text or suggested_action(status) is None:
        return 0
    keys = sum(_key_height(key, width) for _, key in fingerprints(status))
    return max(40, len(_wrapped(text, _text_width(width))) * LINE + 12 + keys)


def _text_width(width: int) -> int:
    """Returns the width of the text in the strip that shows a card's problem."""
    return width - 12 - TEXT_LEFT - BUTTON_ROOM - 4


def _key_height(key: str, width: int) -> int:
    return max(LINE, fingerprint_height(key, _text_width(width) - KEY_NAME)) + 2


def _wrapped(text: str, width: int) -> list[str]:
    """Wraps text into at most STRIP_LINES lines. The last line is elided if the text is longer."""
    font = theme().font("small")
    lines = wrapped(text, font, width)
    if len(lines) > STRIP_LINES:
        rest = " ".join(lines[STRIP_LINES - 1 :])
        last = QFontMetrics(font).elidedText(rest, Qt.TextElideMode.ElideRight, max(40, width))
        return [*lines[: STRIP_LINES - 1], last]
    return lines


CELL = 18.0
CELL_GAP = 4.0
LEAST = 3.0
MARK_FROM = 12.0
"""Minimum width and height in pixels that a cell must have to contain a mark."""


def paint_gpu_cells(painter: QPainter, rect: QRectF, gpus: list[GpuNow]) -> float:
    """Paints a cell per GPU from the left of `rect`. Returns the width of all cells.

    If there are many GPUs, the cells are smaller. A cell is filled from the bottom, in proportion to the load of its
    GPU. A thin line marks an idle GPU that has a user. The cell is hatched if the users of the GPU are unknown. If the
    GPU has a problem, the cell has a mark, provided that there is enough space.
    """
    if not gpus:
        return 0.0
    step = min(CELL + CELL_GAP, (rect.width() + CELL_GAP) / len(gpus))
    gap = CELL_GAP if step > 8 else 1.0
    width = max(LEAST, step - gap)
    for position, gpu in enumerate(gpus):
        _paint(painter, QRectF(rect.x() + position * step, rect.y(), width, rect.height()), gpu)
    return step * len(gpus) - gap


def _paint(painter: QPainter, cell: QRectF, gpu: GpuNow) -> None:
    look = theme()
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(look.brush("fail_soft" if gpu.problem else "track"))
    painter.drawRoundedRect(cell, 3, 3)
    if gpu.problem and cell.width() >= MARK_FROM and cell.height() >= MARK_FROM:
        side = min(cell.width(), cell.height()) - 2
        mark = QRectF(0, 0, side, side)
        mark.moveCenter(cell.center())
        paint_state(painter, mark, "failed")
    elif gpu.users is None:
        painter.setBrush(QBrush(look.color("unknown", 0.35), Qt.BrushStyle.BDiagPattern))
        painter.drawRoundedRect(cell, 3, 3)
    elif not (gpu.utilisation or gpu.users):
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(look.color("line", 0.8 if look.is_dark else 0.5), 1))
        painter.drawRoundedRect(cell.adjusted(0.5, 0.5, -0.5, -0.5), 3, 3)
    else:
        painter.setClipRect(
            cell.adjusted(0, cell.height() - max(2.0, cell.height() * (gpu.utilisation or 0) / 100), 0, 0)
        )
        painter.setBrush(look.brush("meter"))
        painter.drawRoundedRect(cell, 3, 3)
    painter.restore()
