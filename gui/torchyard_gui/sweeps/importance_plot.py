"""The importance of the parameters, as Optuna has computed it on the sweep's primary host."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from torchyard_core.sweeps.trial_table import SweepTable
from torchyard_gui.sweeps.trial_plot import HEAD, PAD, paint_card, paint_sentence
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import RIGHT, draw_elided

ROW, SHARE_WIDTH = 26, 44


class ImportancePlot(QWidget):
    """Plot with a bar for each parameter, the most important parameter first."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._found: dict[str, float] = {}
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setAccessibleName(self.tr("Importance of the parameters"))
        theme().changed.connect(self.update)
        self.show_table(None)

    def show_table(self, table: SweepTable | None) -> None:
        self._found = dict(table.importances) if table is not None else {}
        lines = [f"{name}: {value:.0%}" for name, value in self._found.items()]
        self.setToolTip("\n".join(lines) or self.empty_text())
        self.setAccessibleDescription("; ".join(lines) or self.empty_text())
        self.update()

    def empty_text(self) -> str:
        """Returns a sentence about when the importance will be computed."""
        return self.tr(
            "Optuna computes this on the sweep's primary host, from four complete trials with different values on."
        )

    def sizeHint(self) -> QSize:
        return QSize(200, 180)

    def minimumSizeHint(self) -> QSize:
        return QSize(150, 110)

    def paintEvent(self, event: QPaintEvent) -> None:
        look = theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint_card(painter, QRectF(self.rect()))
        room = QRectF(PAD, 4, self.width() - 2 * PAD, HEAD - 6)
        draw_elided(painter, room, self.tr("Importance"), "small_strong", "text2")
        area = QRectF(self.rect()).adjusted(PAD, HEAD, -PAD, -4)
        if not self._found:
            paint_sentence(painter, area, self.empty_text())
            return
        most = int(area.height() // ROW)
        rows = list(self._found.items())
        shown = rows if len(rows) <= most else rows[: max(0, most - 1)]
        names = min(area.width() * 0.4, max(painter.fontMetrics().horizontalAdvance(name) for name, _ in rows) + 10.0)
        for number, (name, value) in enumerate(shown):
            line = QRectF(area.left(), area.top() + number * ROW, area.width(), ROW)
            draw_elided(painter, QRectF(line.left(), line.top(), names - 6, ROW), name, "small", "text")
            whole = QRectF(line.left() + names, line.center().y() - 3, line.width() - names - SHARE_WIDTH, 6)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.brush("track"))
            painter.drawRoundedRect(whole, 3, 3)
            painter.setBrush(look.brush("accent"))
            whole.setWidth(max(0.0, whole.width() * min(1.0, value)))
            painter.drawRoundedRect(whole, 3, 3)
            share = QRectF(line.right() - SHARE_WIDTH, line.top(), SHARE_WIDTH, ROW)
            draw_elided(painter, share, f"{value:.0%}", "small", "text2", RIGHT)
        if len(shown) < len(rows):
            rest = QRectF(area.left(), area.top() + len(shown) * ROW, area.width(), ROW)
            text = self.tr("and {count} more").format(count=len(rows) - len(shown))
            draw_elided(painter, rest, text, "small", "text2")
