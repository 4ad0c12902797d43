"""The legend below the calendar: owner colours, marks for GPU use, and where the calendar is stored."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QBrush, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from torchyard_gui.bookings.booking_colors import color_token
from torchyard_gui.bookings.labels import owner_name
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import label
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.layouts import hbox

HEIGHT = 28
AlignLeft = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


class Legend(QFrame):
    """Legend widget. For a private calendar, it has a button that emits `share_wanted`."""

    share_wanted = Signal()

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("panel", "bottom")
        self.setFixedHeight(HEIGHT + 2)
        self.key = _Key()
        self.place = label(role="small", ink="2")
        self.share = push_button(self.tr("Share with the team …"), self.share_wanted, "quiet")
        self.share.hide()
        hbox((self.key, 1), self.place, self.share, parent=self, margins=(16, 0, 12, 0), spacing=6)

    def show_location(self, text: str, *, is_private: bool) -> None:
        self.place.setText(text)
        self.share.setVisible(is_private)


class _Key(QWidget):
    """Widget that paints the entries of the legend: the owners with their colours, then the marks for GPU use.

    Entries that do not fit are left out.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumWidth(120)
        self._persons: Sequence[str] = ()
        self._me = ""
        theme().changed.connect(self.update)

    def set_persons(self, persons: Sequence[str], me: str) -> None:
        """Sets the owners of bookings. The user is listed first."""
        ordered = sorted(persons, key=lambda one: (one != me, one))
        if (ordered, me) == (self._persons, self._me):
            return
        self._persons, self._me = ordered, me
        self.setAccessibleName(self.tr("Owners: {names}").format(names=", ".join(self._persons)))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        look = theme()
        painter = QPainter(self)
        marks = (
            (self.tr("used"), "used"),
            (self.tr("booked, idle"), "idle"),
            (self.tr("used, not booked"), "unbooked"),
        )
        painter.setFont(look.font("small"))
        metrics = painter.fontMetrics()
        needed = sum(metrics.horizontalAdvance(text) + 44 for text, _ in marks)
        x = 0.0
        for person in self._persons:
            own = person == self._me
            painter.setFont(look.font("small_strong" if own else "small"))
            name = owner_name(person, self._me)
            width = painter.fontMetrics().horizontalAdvance(name) + 32
            if x + width > self.width() - needed:
                break
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.brush(color_token(person, own=own)))
            painter.drawRoundedRect(QRectF(x, self.height() / 2 - 5, 10, 10), 2, 2)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
            painter.setPen(look.pen("text" if own else "text2"))
            painter.drawText(QRectF(x + 16, 0, width, self.height()), AlignLeft, name)
            x += width
        painter.setFont(look.font("small"))
        x += 6
        for text, kind in marks:
            if x + 24 > self.width():
                break
            self._mark(painter, kind, x)
            painter.setPen(look.pen("text2"))
            painter.drawText(QRectF(x + 26, 0, 200, self.height()), AlignLeft, text)
            x += metrics.horizontalAdvance(text) + 44

    def _mark(self, painter: QPainter, kind: str, x: float) -> None:
        look = theme()
        box = QRectF(x, self.height() / 2 - 6, 18, 12)
        if kind == "used":
            painter.fillRect(QRectF(x, self.height() / 2 - 2.5, 18, 5), look.color("edge_used"))
        elif kind == "idle":
            painter.fillRect(box, QBrush(look.color("wait", 0.55), Qt.BrushStyle.BDiagPattern))
            painter.setPen(look.pen("hair"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box)
        else:
            pen = QPen(look.color("wait"), 1)
            pen.setDashPattern([3, 2])
            painter.setPen(pen)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(box, 2, 2)
