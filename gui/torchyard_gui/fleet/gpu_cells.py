"""GPUs as small cells in a row: how busy each is, and which nobody knows anything of."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QBrush, QPainter

from torchyard_gui.bridge.host_status import GpuNow
from torchyard_gui.theme.marks import paint_state
from torchyard_gui.theme.theme import theme

CELL = 18.0
GAP = 4.0
LEAST = 3.0
MARK_FROM = 12.0
"""The least height at which there is room for a mark."""


def paint_gpu_cells(painter: QPainter, rect: QRectF, gpus: list[GpuNow]) -> float:
    """Draws a cell a GPU from the left of `rect`, smaller where there are many; returns the width taken.

    A cell fills from below with use. Somebody's GPU that is idle keeps a thin ground line; an unknown one is hatched.
    """
    if not gpus:
        return 0.0
    step = min(CELL + GAP, (rect.width() + GAP) / len(gpus))
    gap = GAP if step > 8 else 1.0
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
    elif gpu.utilisation or gpu.users:
        painter.setClipRect(
            cell.adjusted(0, cell.height() - max(2.0, cell.height() * (gpu.utilisation or 0) / 100), 0, 0)
        )
        painter.setBrush(look.brush("meter"))
        painter.drawRoundedRect(cell, 3, 3)
    painter.restore()
