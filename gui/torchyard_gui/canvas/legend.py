"""The legend of the canvas, which explains the ports and lines of edges or, for tiles, the shades of GPU use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PySide6.QtCore import QCoreApplication, QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

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


def entries_of(wiring: HostTraffic) -> list[Entry]:
    """Returns the legend's entries, each with a symbol and a label, for the ports, exchange lines and checkpoint lines
    that are drawn.
    """
    found: list[Entry] = []
    is_ring, is_average = len(wiring.ring) > 1, len(wiring.average) > 1
    does = {port for _, port in wiring.trunk} | ({"trains"} if is_ring or is_average else set())
    if wiring.neighbours:
        does = {"both"}
    labels: dict[Sign, str] = {
        "trains": translate("Legend", "trainers"),
        "serves": translate("Legend", "reducers") if wiring.has_reducers else translate("Legend", "servers"),
        "both": translate("Legend", "trainers that reduce too") if wiring.has_reducers else translate("Legend", "both"),
    }
    if wiring.neighbours:
        labels["both"] = translate("Legend", "trainers")
    found += [(sign, text) for sign, text in labels.items() if sign in does]
    if is_ring:
        found.append(("line", translate("Legend", "all-reduce, synchronous")))
    elif is_average:
        found.append(("dashes", translate("Legend", "average of the groups, every few steps")))
    elif wiring.neighbours:
        found.append(("dashes", translate("Legend", "neighbours, asynchronous")))
    elif wiring.trunk and wiring.in_step:
        found.append(("line", translate("Legend", "synchronous")))
    elif wiring.trunk:
        found.append(("dashes", translate("Legend", "asynchronous")))
    if wiring.checkpoints:
        found.append(("thin", translate("Legend", "checkpoints")))
    return found


HEIGHT = 28
ROW = 20
"""Distance between two rows in pixels."""


class Legend(QWidget):
    """Widget that shows the legend."""

    def __init__(self, parent: QWidget):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._entries: tuple[Entry, ...] | None = ()
        self._limit = 0
        self.hide()

    @property
    def texts(self) -> list[str]:
        if self._entries is None:
            return [self.tr("GPU use"), self.tr("0–100 %")]
        return [text for _, text in self._entries]

    def explain(self, entries: Sequence[Entry] | None) -> None:
        """Shows the given entries. If `entries` is None, shows the shades of tiles; if it is empty, hides the
        legend.
        """
        chosen = None if entries is None else tuple(entries)
        if chosen == self._entries:
            return
        self._entries = chosen
        self._fit()
        self.setAccessibleName(", ".join(self.texts))
        self.setVisible(chosen is None or bool(chosen))
        self.update()

    def set_limit(self, width: int) -> None:
        """Sets the maximum width. Entries that do not fit into one row are wrapped, and the legend grows upwards."""
        self._limit = width
        self._fit()

    def _fit(self) -> None:
        bottom = self.geometry().bottom()
        if self._entries is None:
            words = sum(paint_cache.width_of(text, "tiny") for text in self.texts)
            self.resize(int(2 * PAD + (STEPS + 1) * SHADE_WIDTH + 16 + words), HEIGHT)
        else:
            rows = self._rows(self._entries)
            widest = max((sum(map(_width, row)) + BETWEEN * (len(row) - 1) for row in rows), default=0)
            self.resize(int(2 * PAD + widest), HEIGHT + ROW * (len(rows) - 1))
        self.move(self.x(), bottom - self.height() + 1)

    def _rows(self, entries: Sequence[Entry]) -> list[list[Entry]]:
        """Distributes the entries over rows that are no wider than the limit.

        Only an entry that is alone in its row may be wider than the limit.
        """
        rows: list[list[Entry]] = []
        x = 0.0
        for entry in entries:
            x += _width(entry) + BETWEEN
            if not rows or x - BETWEEN > self._limit - 2 * PAD:
                rows.append([])
                x = _width(entry) + BETWEEN
            rows[-1].append(entry)
        return rows

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
            for number, row in enumerate(self._rows(self._entries)):
                x, middle = float(PAD), HEIGHT / 2 + ROW * number
                for sign, text in row:
                    self._paint_sign(painter, x, middle, sign)
                    x = self._write(painter, x + _room(sign), text, middle) + BETWEEN
        painter.end()

    def _paint_sign(self, painter: QPainter, x: float, middle: float, sign: Sign) -> None:
        color = theme().color("edge")
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

    def _write(self, painter: QPainter, x: float, text: str, middle: float = HEIGHT / 2) -> float:
        painter.setPen(theme().color("text2"))
        painter.drawText(QPointF(x, middle + 4), text)
        return x + paint_cache.width_of(text, "tiny")


def _width(entry: Entry) -> float:
    """Returns the width of a symbol and its label, in pixels."""
    return _room(entry[0]) + paint_cache.width_of(entry[1], "tiny")


def _room(sign: Sign) -> int:
    """Returns the width of a symbol, including the gap before its label, in pixels."""
    return {"trains": 18, "serves": 18, "both": 18}.get(sign, LINE + 8)
