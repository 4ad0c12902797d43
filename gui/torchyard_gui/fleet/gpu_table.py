"""Table of a host's GPUs, with their load and users."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from torchyard_gui.bridge.host_status import GpuNow
from torchyard_gui.fleet.labels import gpu_kind, heat_text, percent, used_of
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import RIGHT, draw_elided

LINE = 19
ROW = 3 * LINE + 18
METER = 4


class GpuTable(QWidget):
    """Table that is painted as a single widget, because the values of up to 16 GPUs change every second."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._gpus: list[GpuNow] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme().changed.connect(self.update)

    @property
    def gpus(self) -> list[GpuNow]:
        return self._gpus

    def show_gpus(self, gpus: list[GpuNow]) -> None:
        if gpus == self._gpus:
            return
        resized = len(gpus) != len(self._gpus)
        self._gpus = gpus
        self.setAccessibleName("; ".join(self.described(gpu) for gpu in gpus))
        if resized:
            self.updateGeometry()
        self.update()

    def described(self, gpu: GpuNow) -> str:
        text = self.tr("GPU {index}, {kind}, {percent}, {memory}, {heat}: {users}")
        return text.format(
            heat=self.heat(gpu) or "?",
            index=gpu.index,
            kind=gpu_kind(gpu),
            percent=percent(gpu.utilisation),
            memory=used_of(gpu.memory_used_mb, gpu.memory_mb),
            users=self.users(gpu),
        )

    def heat(self, gpu: GpuNow) -> str:
        """Returns a GPU's temperature and power as text, with a note if heat or a power brake throttles its clocks."""
        slowed = any("thermal" in reason or "brake" in reason for reason in gpu.throttling)
        return " · ".join(text for text in (heat_text([gpu]), self.tr("throttled") if slowed else "") if text)

    def users(self, gpu: GpuNow) -> str:
        """Returns the names of a GPU's users, a note that the GPU is free, or the reason why its use is unknown."""
        if gpu.problem:
            return gpu.problem
        if gpu.users is None:
            return self.tr("use unknown")
        return ", ".join(gpu.users) or self.tr("free")

    def sizeHint(self) -> QSize:
        return QSize(200, ROW * len(self._gpus))

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            row = event.pos().y() // ROW
            if 0 <= row < len(self._gpus):
                QToolTip.showText(event.globalPos(), self.described(self._gpus[row]), self)
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for number, gpu in enumerate(self._gpus):
            self._paint(painter, QRect(0, number * ROW, self.width(), ROW - 8), gpu)

    def _paint(self, painter: QPainter, rect: QRect, gpu: GpuNow) -> None:
        look = theme()
        known = gpu.users is not None
        first = QRect(rect.x(), rect.y(), rect.width(), LINE)
        second = first.translated(0, 28)
        name = self.tr("GPU {index}").format(index=gpu.index)
        taken = draw_elided(painter, first, name, "strong", "text")
        kind = gpu_kind(gpu)
        draw_elided(painter, first.adjusted(taken + 8, 0, -52, 0), kind, "small", "text3")
        if known:
            draw_elided(painter, first, percent(gpu.utilisation), "body", "text2", side=RIGHT)
        bar = QRectF(rect.x(), rect.y() + LINE + 3, rect.width(), METER)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.brush("track"))
        painter.drawRoundedRect(bar, 2, 2)
        if gpu.utilisation:
            bar.setWidth(max(4.0, bar.width() * min(1.0, gpu.utilisation / 100)))
            painter.setBrush(look.brush("meter"))
            painter.drawRoundedRect(bar, 2, 2)
        memory = used_of(gpu.memory_used_mb, gpu.memory_mb) if known else ""
        width = QFontMetrics(look.font("small")).horizontalAdvance(memory)
        ink = "fail" if gpu.problem else "text2" if gpu.users else "text3"
        draw_elided(painter, second.adjusted(0, 0, -width - 10 if memory else 0, 0), self.users(gpu), "small", ink)
        draw_elided(painter, second, memory, "small", "text3", side=RIGHT)
        draw_elided(painter, second.translated(0, LINE), self.heat(gpu), "small", "text3")
