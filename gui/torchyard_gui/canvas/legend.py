"""Legend of the canvas: the meaning of ports and lines, or of the shades of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PySide6.QtCore import QCoreApplication, QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from torchyard_core.topology.model import Role, StrategyKind
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.edges.edge_items import DASHES, paint_port
from torchyard_gui.canvas.edges.traffic import HostTraffic
from torchyard_gui.canvas.racks.tile_painting import STEPS
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

Sign = Literal["trains", "serves", "both", "line", "dashes", "thin"]
Entry = tuple[Sign, str]

PAD = 10
LINE = 26
BETWEEN = 16
SHADE_WIDTH = 18

translate = QCoreApplication.translate


def entries_of(kind: StrategyKind, wiring: HostTraffic) -> list[Entry]:
    """Returns a sign and a text for each kind of port and line that is drawn."""
    found: list[Entry] = []
    does = {port for _, port in wiring.trunk} | ({"trains"} if wiring.ring else set())
    if wiring.neighbours:
        does = {"both"}
    has_reducers = spec_of(kind).server_role is Role.REDUCER
    labels: dict[Sign, str] = {
        "trains": translate("Legend", "trainers"),
        "serves": translate("Legend", "reducers") if has_reducers else translate("Legend", "servers"),
        "both": translate("Legend", "trainers that reduce too") if has_reducers else translate("Legend", "both"),
    }
    if wiring.neighbours:
        labels["both"] = translate("Legend", "trainers")
    found += [(sign, text) for sign, text in labels.items() if sign in does]
    if wiring.ring:
        found.append(("line", translate("Legend", "all-reduce, in step")))
    elif wiring.neighbours:
        found.append(("dashes", translate("Legend", "neighbours, each at its own pace")))
    elif wiring.trunk and wiring.in_step:
        found.append(("line", translate("Legend", "in step")))
    elif wiring.trunk:
        found.append(("dashes", translate("Legend", "each at its own pace")))
    if wiring.checkpoints:
        found.append(("thin", translate("Legend", "checkpoints")))
    return found


class Legend(QWidget):
    """Widget that shows the legend."""

    def __init__(self, parent: QWidget):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._entries: tuple[Entry, ...] | None = ()
        self.hide()

    @property
    def texts(self) -> list[str]:
        if self._entries is None:
            return [self.tr("GPU use"), self.tr("0–100 %")]
        return [text for _, text in self._entries]

    def explain(self, entries: Sequence[Entry] | None) -> None:
        """Shows entries, or the shades of tiles if `entries` is None. The legend is hidden if `entries` is empty."""
        chosen = None if entries is None else tuple(entries)
        if chosen == self._entries:
            return
        self._entries = chosen
        words = sum(paint_cache.width_of(text, "tiny") for text in self.texts)
        if chosen is None:
            picture: float = (STEPS + 1) * SHADE_WIDTH + 16
        else:
            picture = sum(_room(sign) for sign, _ in chosen) + BETWEEN * max(0, len(chosen) - 1)
        self.resize(int(2 * PAD + picture + words), 28)
        self.setAccessibleName(", ".join(self.texts))
        self.setVisible(chosen is None or bool(chosen))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color("s0", 0.85))
        painter.drawRoundedRect(QRectF(self.rect()), M.radius, M.radius)
        painter.setFont(paint_cache.font("tiny"))
        if self._entries is None:
            self._paint_use(painter)
        else:
            x = float(PAD)
            for sign, text in self._entries:
                self._paint_sign(painter, x, sign)
                x = self._write(painter, x + _room(sign), text) + BETWEEN
        painter.end()

    def _paint_sign(self, painter: QPainter, x: float, sign: Sign) -> None:
        middle, color = self.height() / 2, theme().color("edge")
        if sign in ("trains", "serves", "both"):
            paint_port(painter, (x + 5, middle), sign, color)
        else:
            width = 1.5 if sign == "thin" else M.edge
            pen = QPen(color, width, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap)
            if sign != "line":
                pen.setDashPattern([length / width for length in DASHES])
            painter.setPen(pen)
            painter.drawLine(QPointF(x, middle), QPointF(x + LINE, middle))

    def _paint_use(self, painter: QPainter) -> None:
        what, span = self.texts
        x = self._write(painter, PAD, what) + 8
        painter.setPen(Qt.PenStyle.NoPen)
        for step in range(STEPS + 1):
            shade = paint_cache.mixed("track", "meter", (1 + step) / (STEPS + 1))
            painter.fillRect(QRectF(x, self.height() / 2 - 5, SHADE_WIDTH, 10), shade)
            x += SHADE_WIDTH
        self._write(painter, x + 8, span)

    def _write(self, painter: QPainter, x: float, text: str) -> float:
        painter.setPen(theme().color("text2"))
        painter.drawText(QPointF(x, self.height() / 2 + 4), text)
        return x + paint_cache.width_of(text, "tiny")


def _room(sign: Sign) -> int:
    """Returns the width of a sign, including the gap before its text, in pixels."""
    return {"trains": 18, "serves": 18, "both": 18}.get(sign, LINE + 8)
