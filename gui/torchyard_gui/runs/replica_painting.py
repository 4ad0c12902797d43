"""Draws a row of the table of replicas, with its sparkline; only rows that are seen are drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PySide6.QtCore import QPointF, QRect, QRectF, QSortFilterProxyModel, Qt
from PySide6.QtGui import QPainter, QPolygonF
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem

from torchyard_gui.bridge.run_state_types import Track
from torchyard_gui.runs.replica_table_model import TRACK, Index, ReplicaTableModel
from torchyard_gui.runs.table_columns import GPUS, MEMORY, NAME, PAST, STATE, STEP
from torchyard_gui.theme.icons import paint_role_badge, paint_state
from torchyard_gui.theme.theme import theme

SPARK_POINTS = 90


class ReplicaDelegate(QStyledItemDelegate):
    """Draws a row: badge and name, mark and state, numbers at the right, and the past as a line."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        look = theme()
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        track: Track = index.data(TRACK)
        column = index.column()
        painter.save()
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, look.color("accent_soft"))
        inner = rect.adjusted(8, 0, -8, 0)
        painter.setFont(look.font("strong" if column == NAME else "body"))
        painter.setPen(look.pen("text" if column == NAME or STEP <= column <= MEMORY else "text2"))
        if column == PAST:
            self._past(painter, inner, track)
        elif column == NAME:
            paint_role_badge(painter, QRectF(inner.x(), inner.center().y() - 7, 16, 16), track.role)
            _text(painter, inner.adjusted(24, 0, 0, 0), str(index.data()), Qt.AlignmentFlag.AlignLeft)
        elif column == STATE:
            model = index.model()
            source = model.sourceModel() if isinstance(model, QSortFilterProxyModel) else model
            mark = source.state_of(track)[0] if isinstance(source, ReplicaTableModel) else track.state
            paint_state(painter, QRectF(inner.x(), inner.center().y() - 6, 14, 14), mark)
            painter.setPen(look.pen({"failed": "fail", "warning": "wait"}.get(mark, "text2")))
            _text(painter, inner.adjusted(20, 0, 0, 0), str(index.data()), Qt.AlignmentFlag.AlignLeft)
        else:
            side = Qt.AlignmentFlag.AlignRight if GPUS <= column <= MEMORY else Qt.AlignmentFlag.AlignLeft
            _text(painter, inner, str(index.data()), side)
        painter.restore()

    def _past(self, painter: QPainter, rect: QRect, track: Track) -> None:
        values = track.ring.tail("gpu" if track.gpus else "cpu", SPARK_POINTS)
        if len(values) < 2:
            return
        top = 100.0 if track.gpus else max(100.0, float(np.nanmax(values)) if np.isfinite(values).any() else 100.0)
        width, height = rect.width(), rect.height() - 10
        xs = rect.x() + np.arange(len(values)) * (width / (SPARK_POINTS - 1)) + width * (1 - len(values) / SPARK_POINTS)
        ys = rect.y() + 5 + height * (1 - np.clip(values / top, 0, 1))
        painter.setPen(theme().pen("meter"))
        for piece in _pieces(xs, ys):
            painter.drawPolyline(piece)


def _text(painter: QPainter, rect: QRect, text: str, side: Qt.AlignmentFlag) -> None:
    short = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, rect.width())
    painter.drawText(rect, side | Qt.AlignmentFlag.AlignVCenter, short)


def _pieces(xs: Any, ys: Any) -> list[QPolygonF]:
    """Lines between gaps."""
    pieces: list[QPolygonF] = []
    points: list[QPointF] = []
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isnan(y):
            if len(points) > 1:
                pieces.append(QPolygonF(points))
            points = []
        else:
            points.append(QPointF(x, y))
    if len(points) > 1:
        pieces.append(QPolygonF(points))
    return pieces
