"""The timeline of a run, in which the latest event is first."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from torchyard_gui.bridge.run_state_types import TimelineEvent
from torchyard_gui.runs.labels import clock, moment_in_full, moment_in_words, moment_mark
from torchyard_gui.theme.icons import paint_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.elided_text import draw_elided

ROW = 22
SHOWN = 200


class Timeline(QWidget):
    """A list with one line for each of the last SHOWN events. A line's tool tip contains the full text.

    A click on a line about the state or the first step of a replica opens the replica's log. Enter and Space do the
    same for the current line.
    """

    opened = Signal(str)
    row_entered = Signal(QRect)
    """Emitted with the area of the current line when the keyboard selects it or the list gets the focus."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._moments: list[TimelineEvent] = []
        self._row = 0
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(self.tr("Events"))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme().changed.connect(self.update)

    @property
    def texts(self) -> list[str]:
        """The text of each line, from top to bottom."""
        return [moment_in_words(moment) for moment in self._moments]

    def show_moments(self, moments: Sequence[TimelineEvent]) -> None:
        newest = list(moments[-SHOWN:])[::-1]
        if newest != self._moments:
            self._moments = newest
            self._row = min(self._row, max(0, len(newest) - 1))
            self.setAccessibleDescription("; ".join(self.texts[:10]))
            self.updateGeometry()
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, max(1, len(self._moments)) * ROW)

    def paintEvent(self, event: QPaintEvent) -> None:
        look = theme()
        painter = QPainter(self)
        painter.setFont(look.font("small"))
        if not self._moments:
            painter.setPen(look.pen("text3"))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignTop, self.tr("No events"))
            return
        dirty = event.rect()
        time_width = painter.fontMetrics().horizontalAdvance("00:00:00") + 8
        first = max(0, dirty.top() // ROW)
        for row, moment in enumerate(self._moments[first : dirty.bottom() // ROW + 1], first):
            y = row * ROW
            if row == self._row and self.hasFocus():
                painter.fillRect(QRect(0, y, self.width(), ROW), look.color("accent_soft"))
            painter.setPen(look.pen("text3"))
            side = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRect(0, y, time_width, ROW), side, clock(moment.time, exact=True) if moment.time else "–")
            paint_state(painter, QRectF(time_width, y + 5, 12, 12), moment_mark(moment))
            rect = QRect(time_width + 18, y, self.width() - time_width - 18, ROW)
            draw_elided(painter, rect, moment_in_words(moment), ink="text2")

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            moment = self._at(event.pos().y())
            if moment is not None:
                text = f"{moment_in_full(moment.time)}\n{moment_in_words(moment)}"
                QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._open(self._at(int(event.position().y())))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self._moments) - 1
        rows = {
            Qt.Key.Key_Up: max(0, self._row - 1),
            Qt.Key.Key_Down: min(last, self._row + 1),
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: last,
        }
        key = Qt.Key(event.key())
        if key in rows and self._moments:
            self._row = rows[key]
            self._say_row()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space) and self._moments:
            self._open(self._moments[self._row])
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if self._moments:
            self._say_row()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def _say_row(self) -> None:
        moment = self._moments[self._row]
        self.setAccessibleDescription(f"{clock(moment.time, exact=True)} {moment_in_words(moment)}")
        self.row_entered.emit(QRect(0, self._row * ROW, self.width(), ROW))
        self.update()

    def _open(self, moment: TimelineEvent | None) -> None:
        if moment is not None and moment.replica and moment.kind in ("replica", "first_step"):
            self.opened.emit(moment.replica)

    def _at(self, y: int) -> TimelineEvent | None:
        row = y // ROW
        return self._moments[row] if 0 <= row < len(self._moments) else None
