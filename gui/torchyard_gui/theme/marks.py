"""Vector marks of roles (with shape, colour and letter) and of states (with shape and colour)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFont, QPainter, QPainterPath, QPen, QPolygonF

from torchyard_gui.theme.theme import theme

UNIT = 16.0
"""Side of the square on which marks are drawn before they are scaled."""

LETTERS = {"worker": "W", "ps": "P", "chief": "C", "reducer": "R", "evaluator": "E"}


def paint_role_badge(painter: QPainter, rect: QRectF, role: str) -> None:
    """Paints a role's badge, which has a shape and a letter: worker □ W, ps ○ P, chief ⬠ C, reducer ⬡ R, evaluator ◇
    E.
    """
    look = theme()
    _begin(painter, rect)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(look.brush(role if role in LETTERS else "text2"))
    painter.drawPath(_shape(role))
    painter.setBrush(look.brush("on_role"))
    painter.drawPath(_letter(role))
    painter.restore()


def paint_state(painter: QPainter, rect: QRectF, state: str) -> None:
    """Paints the mark of a state of a run, replica, host or check.

    Unknown names get the mark of the state `unknown`.
    """
    _begin(painter, rect)
    painter.setPen(Qt.PenStyle.NoPen)
    STATES.get(state, _unknown)(painter)
    painter.restore()


def _begin(painter: QPainter, rect: QRectF) -> None:
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.translate(rect.topLeft())
    painter.scale(rect.width() / UNIT, rect.height() / UNIT)


@cache
def _shape(role: str) -> QPainterPath:
    path = QPainterPath()
    if role == "ps":
        path.addEllipse(QRectF(0.25, 0.25, 15.5, 15.5))
    elif role == "chief":
        path.addPolygon(_regular(5, 8, 8.6, 8.3))
    elif role == "reducer":
        path.addPolygon(_regular(6, 8, 8, 8.2))
    elif role == "evaluator":
        path.addPolygon(_regular(4, 8, 8, 8.6))
    else:
        path.addRoundedRect(QRectF(0.75, 0.75, 14.5, 14.5), 3.5, 3.5)
    path.closeSubpath()
    return path


@cache
def _letter(role: str) -> QPainterPath:
    font = QFont(theme().font("strong"))
    font.setPixelSize(8)
    font.setWeight(QFont.Weight.ExtraBold)
    path = QPainterPath()
    path.addText(0, 0, font, LETTERS.get(role, role[:1].upper() or "?"))
    box = path.boundingRect()
    middle = 8.5 if role == "chief" else 8.0
    return path.translated(8 - box.center().x(), middle - box.center().y())


def _regular(corners: int, x: float, y: float, radius: float) -> QPolygonF:
    turn = math.tau / corners
    return QPolygonF(
        [
            QPointF(x + radius * math.sin(turn * corner), y - radius * math.cos(turn * corner))
            for corner in range(corners)
        ]
    )


def _stroke(painter: QPainter, token: str, width: float) -> None:
    pen = QPen(theme().color(token), width, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)


def _running(painter: QPainter) -> None:
    painter.setBrush(theme().brush("run"))
    painter.drawPolygon(QPolygonF([QPointF(4, 3), QPointF(13, 8), QPointF(4, 13)]))


def _starting(painter: QPainter) -> None:
    painter.setBrush(theme().brush("run"))
    for x in (3.0, 8.0, 13.0):
        painter.drawEllipse(QPointF(x, 8), 1.6, 1.6)


def _waiting(painter: QPainter) -> None:
    _stroke(painter, "wait", 1.6)
    painter.drawEllipse(QPointF(8, 8), 5.7, 5.7)
    painter.drawPolyline([QPointF(8, 4.8), QPointF(8, 8), QPointF(10.4, 9.4)])


def _warning(painter: QPainter) -> None:
    painter.setBrush(theme().brush("wait"))
    path = QPainterPath()
    path.addPolygon(QPolygonF([QPointF(8, 1.6), QPointF(15.2, 14.2), QPointF(0.8, 14.2)]))
    path.closeSubpath()
    painter.drawPath(path)
    _stroke(painter, "s2", 1.6)
    painter.drawLine(QPointF(8, 6.2), QPointF(8, 9.4))
    painter.drawPoint(QPointF(8, 11.9))


def _failed(painter: QPainter) -> None:
    painter.setBrush(theme().brush("fail"))
    painter.drawPolygon(QPolygonF(_turned_octagon()))
    _stroke(painter, "s2", 1.7)
    painter.drawLine(QPointF(5.6, 5.6), QPointF(10.4, 10.4))
    painter.drawLine(QPointF(10.4, 5.6), QPointF(5.6, 10.4))


def _turned_octagon() -> list[QPointF]:
    turn = math.tau / 8
    return [
        QPointF(8 + 7.4 * math.sin(turn * (corner + 0.5)), 8 - 7.4 * math.cos(turn * (corner + 0.5)))
        for corner in range(8)
    ]


def _unknown(painter: QPainter) -> None:
    pen = QPen(theme().color("unknown"), 1.3)
    pen.setDashPattern([2.2, 1.6])
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawEllipse(QPointF(8, 8), 6.6, 6.6)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(theme().brush("unknown"))
    painter.drawPath(_question())


@cache
def _question() -> QPainterPath:
    font = QFont(theme().font("strong"))
    font.setPixelSize(9)
    path = QPainterPath()
    path.addText(0, 0, font, "?")
    box = path.boundingRect()
    return path.translated(8 - box.center().x(), 8 - box.center().y())


def _succeeded(painter: QPainter) -> None:
    _stroke(painter, "done", 2)
    painter.drawPolyline([QPointF(3, 8.6), QPointF(6.6, 12), QPointF(13, 4.4)])


def _passed(painter: QPainter) -> None:
    _stroke(painter, "run", 2)
    painter.drawPolyline([QPointF(3, 8.6), QPointF(6.6, 12), QPointF(13, 4.4)])


def _stopped(painter: QPainter) -> None:
    painter.setBrush(theme().brush("stopped"))
    painter.drawRoundedRect(QRectF(4, 4, 8, 8), 1, 1)


def _planned(painter: QPainter) -> None:
    _stroke(painter, "line", 1.4)
    painter.drawEllipse(QPointF(8, 8), 4.5, 4.5)


def _ok(painter: QPainter) -> None:
    painter.setBrush(theme().brush("run"))
    painter.drawEllipse(QPointF(8, 8), 3.2, 3.2)


TOKENS = {"warning": "wait", "slow": "wait", "failed": "fail", "error": "fail"}
"""The colour token for the text and the background beside a mark. Only marks of problems have a token."""


def trouble_token(state: str) -> str:
    """Returns "wait" for a state that needs attention, "fail" for a failed state, and "" for any other state."""
    return TOKENS.get(state, "")


STATES: dict[str, Callable[[QPainter], None]] = {
    "ok": _ok,
    "passed": _passed,
    "running": _running,
    "starting": _starting,
    "preparing": _starting,
    "sending": _starting,
    "restarting": _starting,
    "stopping": _starting,
    "checking": _starting,
    "waiting": _waiting,
    "warning": _warning,
    "slow": _warning,
    "failed": _failed,
    "error": _failed,
    "lost": _unknown,
    "unknown": _unknown,
    "succeeded": _succeeded,
    "done": _succeeded,
    "stopped": _stopped,
    "cancelled": _stopped,
    "skipped": _planned,
    "planned": _planned,
    "pending": _planned,
    "draft": _planned,
    "idle": _planned,
}
