"""A small plot of the last minutes, with a name and the latest value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QPolygonF, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from torchyard_gui.runs.plots.downsampling import calmed
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided

HEAD, NOTE, LINE, SENTENCE = 24, 16, 44, 22
"""Heights in pixels of the line with name and value, of a note below it, of the plot, and of the sentence that replaces
the plot.
"""
GAP = 12
"""Minimum distance in pixels between the name and the value."""


class MiniPlot(QWidget):
    """Plot that is painted directly, with at most one point per pixel.

    A note follows the name, or is on the line below if name and note do not fit beside the value. If there are fewer
    than two points, a sentence, which needs less space, replaces the plot.
    """

    def __init__(self, name: str, token: str, parent: QWidget | None = None, *, explanation: str = ""):
        """Creates a plot. `explanation` describes what is measured, for the tool tip."""
        super().__init__(parent)
        self._name = name
        self._token = token
        self._value = "–"
        self._note = ""
        self._is_note_below = False
        self._values: NDArray[np.float32] = np.empty(0, np.float32)
        self._range: tuple[float, float] | None = None
        self._calm = False
        self._sentence = ""
        self.explanation = explanation
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme().changed.connect(self.update)
        self._announce()

    def set_values(
        self,
        values: NDArray[np.float32],
        value: str,
        note: str = "",
        fixed: tuple[float, float] | None = None,
        *,
        calm: bool = False,
        sentence: str = "",
    ) -> None:
        """Sets the data.

        Args:
            value: Latest value as text.
            note: What the value refers to, such as the name of a replica.
            fixed: Range of the axis, by default that of the data.
            calm: Whether a small range is widened, so that noise of a few percent does not fill the plot.
            sentence: Text that is shown if there is no line.
        """
        before = self.sizeHint()
        self._is_note_below &= note == self._note
        self._values, self._value, self._note, self._range, self._calm = values, value, note, fixed, calm
        self._sentence = sentence
        self._place_note()
        if self.sizeHint() != before:
            self.updateGeometry()
        self._announce()
        self.update()

    @property
    def has_line(self) -> bool:
        """Whether there are enough points to draw a line."""
        return int(np.isfinite(self._values).sum()) > 1

    @property
    def sentence(self) -> str:
        """The text that is shown instead of a line, or "" if there is a line."""
        return "" if self.has_line else self._sentence

    @property
    def _head(self) -> int:
        """Height in pixels of the text above the plot."""
        return HEAD + (NOTE if self._is_note_below else 0)

    @property
    def _title(self) -> str:
        return f"{self._name}, {self._note}" if self._note else self._name

    def sizeHint(self) -> QSize:
        return QSize(200, self._head + (LINE if self.has_line else SENTENCE))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._is_note_below = False
            self._place_note()
            self.updateGeometry()

    def _place_note(self) -> None:
        """Moves the note to its own line if it does not fit beside the value. The note stays on that line even if later
        values are shorter.
        """
        if self._note and not self._is_note_below:
            title = QFontMetrics(theme().font("small")).horizontalAdvance(self._title)
            value = QFontMetrics(theme().font("strong")).horizontalAdvance(self._value)
            self._is_note_below = title + GAP + value > self.width()

    def paintEvent(self, event: QPaintEvent) -> None:
        look = theme()
        painter = QPainter(self)
        width = self.width()
        painter.setFont(look.font("strong"))
        painter.setPen(look.pen("text"))
        head = QRectF(0, 0, width, HEAD)
        painter.drawText(head, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, self._value)
        room = width - painter.fontMetrics().horizontalAdvance(self._value) - GAP
        draw_elided(
            painter, QRectF(0, 0, room, HEAD), self._name if self._is_note_below else self._title, "small", "text2"
        )
        if self._is_note_below:
            draw_elided(painter, QRectF(0, HEAD - 4, width, NOTE), self._note, "small", "text3")
        floor = self.height() - 1
        painter.setPen(look.pen("hair"))
        painter.drawLine(0, floor, width, floor)
        if not self.has_line:
            painter.setPen(look.pen("text3"))
            text = painter.fontMetrics().elidedText(self._sentence, Qt.TextElideMode.ElideRight, width)
            painter.drawText(QRectF(0, self._head - 4, width, SENTENCE), Qt.AlignmentFlag.AlignLeft, text)
            return
        painter.setPen(look.pen(self._token))
        for piece in self._pieces(QRectF(0, self._head, width, floor - self._head - 3)):
            painter.drawPolyline(piece)

    def _pieces(self, rect: QRectF) -> list[QPolygonF]:
        values = _thinned(self._values, max(2, int(rect.width())))
        known = np.isfinite(values)
        if known.sum() < 2:  # Reducing the resolution has left fewer than two points.
            return []
        low, high = self._range or (float(values[known].min()), float(values[known].max()))
        if self._calm:
            low, high = calmed(low, high)
        span = (high - low) or 1.0
        xs = rect.x() + np.arange(len(values)) * (rect.width() / max(1, len(values) - 1))
        ys = rect.bottom() - rect.height() * (
            (np.clip(values, low, high) - low) / span if high > low else 0.5 + 0 * values
        )
        return lines_between_gaps(xs, np.where(known, ys, np.nan))

    def _announce(self) -> None:
        self.setAccessibleName(f"{self._title}: {self._value}")
        self.setAccessibleDescription(self.sentence)
        self.setToolTip("\n".join(text for text in (self.explanation, self.sentence) if text))


def lines_between_gaps(xs: Any, ys: Any) -> list[QPolygonF]:
    """Returns a line for each sequence of two or more adjacent points without a gap. A NaN is a gap."""
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


def _thinned(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Returns at most `count` values. If there are more, intervals of equal length are reduced to their means."""
    if len(values) <= count:
        return values
    share = -(-len(values) // count)
    begin = len(values) % share
    groups = values[begin:].reshape(-1, share)
    known = np.isfinite(groups)
    sums = np.where(known, groups, 0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float32] = (sums / known.sum(axis=1)).astype(np.float32)
    return means
