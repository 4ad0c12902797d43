"""Beside the zoom's buttons: what the lines between racks mean, or the shades of tiles."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from torchyard_gui.canvas import ink
from torchyard_gui.canvas.tile_painting import STEPS
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

Topic = Literal["", "loop", "use"]

PAD = 10
LINE = 26
SHADE_WIDTH = 18


class Legend(QWidget):
    """Explains one topic, or is hidden."""

    def __init__(self, parent: QWidget):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._topic: Topic = ""
        self.hide()

    def explain(self, topic: Topic) -> None:
        if topic == self._topic:
            return
        self._topic = topic
        first, second = self._texts()
        picture = 18 + LINE + 8 + 16 if topic == "loop" else (STEPS + 1) * SHADE_WIDTH + 16
        width = 2 * PAD + picture + ink.width_of(first, "tiny") + ink.width_of(second, "tiny")
        self.resize(int(width), 28)
        self.setAccessibleName(f"{first}, {second}")
        self.setVisible(bool(topic))
        self.update()

    def _texts(self) -> tuple[str, str]:
        if self._topic == "loop":
            return self.tr("trainers"), self.tr("all-reduce, in step")
        return self.tr("GPU use"), self.tr("0–100 %")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color("s0", 0.85))
        painter.drawRoundedRect(QRectF(self.rect()), M.radius, M.radius)
        painter.setFont(ink.font("tiny"))
        if self._topic == "loop":
            self._paint_loop(painter)
        else:
            self._paint_use(painter)
        painter.end()

    def _paint_loop(self, painter: QPainter) -> None:
        trainers, line = self._texts()
        middle = self.height() / 2
        painter.setPen(QPen(theme().color("edge"), 2))
        painter.setBrush(theme().brush("s2"))
        painter.drawEllipse(QPointF(PAD + 5, middle), 5, 5)
        x = self._write(painter, PAD + 18, trainers) + 16
        painter.setPen(QPen(theme().color("edge"), M.edge))
        painter.drawLine(QPointF(x, middle), QPointF(x + LINE, middle))
        self._write(painter, x + LINE + 8, line)

    def _paint_use(self, painter: QPainter) -> None:
        what, span = self._texts()
        x = self._write(painter, PAD, what) + 8
        painter.setPen(Qt.PenStyle.NoPen)
        for step in range(STEPS + 1):
            shade = ink.mixed("track", "meter", (1 + step) / (STEPS + 1))
            painter.fillRect(QRectF(x, self.height() / 2 - 5, SHADE_WIDTH, 10), shade)
            x += SHADE_WIDTH
        self._write(painter, x + 8, span)

    def _write(self, painter: QPainter, x: float, text: str) -> float:
        painter.setPen(theme().color("text2"))
        painter.drawText(QPointF(x, self.height() / 2 + 4), text)
        return x + ink.width_of(text, "tiny")
