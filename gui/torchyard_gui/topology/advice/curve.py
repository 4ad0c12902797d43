"""The curve of predicted samples per second over the number of workers, with the prediction interval and the
recommended point.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from torchyard_core.advisor.recommendation import CurvePoint
from torchyard_core.formatting import count, counted
from torchyard_gui.theme.theme import theme

HEIGHT, HEAD, FOOT = 132, 20, 20
DOT = 4


class SpeedCurve(QWidget):
    """Paints the curve of predicted speed. The tool tip and the accessible description list the curve's points."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._points: tuple[CurvePoint, ...] = ()
        self._chosen = 0
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(self.tr("Predicted speed by number of workers"))
        theme().changed.connect(self.update)

    def show_points(self, points: Sequence[CurvePoint], chosen: int, unit: str) -> None:
        """Sets the points. `chosen` is the recommended number of workers, and `unit` is the unit of the speed."""
        self._points, self._chosen = tuple(points), chosen
        lines = [
            self.tr("{workers}: {speed} {unit}").format(
                workers=counted(each.trainers, "worker"), speed=count(each.samples_s), unit=unit
            )
            for each in points
        ]
        self.setToolTip("\n".join(lines))
        self.setAccessibleDescription("; ".join(lines))
        self.setVisible(len(points) > 1)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(240, HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        if len(self._points) < 2:
            return
        look = theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(look.font("small"))
        painter.setPen(look.pen("text2"))
        left, right = Qt.AlignmentFlag.AlignLeft, Qt.AlignmentFlag.AlignRight
        top = max(each.high for each in self._points)
        first, last = self._points[0].trainers, self._points[-1].trainers
        painter.drawText(QRectF(0, 0, self.width(), HEAD), left, count(top))
        foot = QRectF(0, self.height() - FOOT + 4, self.width(), FOOT - 4)
        painter.drawText(foot, left, str(first))
        painter.drawText(foot, right, str(last))
        area = QRectF(DOT, HEAD, self.width() - 2 * DOT, self.height() - HEAD - FOOT)

        def place(trainers: int, speed: float) -> QPointF:
            share = (trainers - first) / max(1, last - first)
            return QPointF(area.left() + share * area.width(), area.bottom() - speed / top * area.height())

        painter.setPen(look.pen("hair"))
        painter.drawLine(area.bottomLeft(), area.bottomRight())
        band = [place(each.trainers, each.high) for each in self._points]
        band += [place(each.trainers, each.low) for each in reversed(self._points)]
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.color("accent_soft"))
        painter.drawPolygon(QPolygonF(band))
        painter.setPen(look.pen("accent"))
        painter.drawPolyline(QPolygonF([place(each.trainers, each.samples_s) for each in self._points]))
        chosen = next((each for each in self._points if each.trainers == self._chosen), None)
        if chosen is not None:
            painter.setBrush(look.color("accent"))
            painter.drawEllipse(place(chosen.trainers, chosen.samples_s), DOT, DOT)
