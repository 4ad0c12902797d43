"""Paints bookings: the body, the measured use, the idle time, and a label that is shortened to the available width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter

from torchyard_core.booking.model import Booking, State, is_of_cluster
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.booking_colors import color_token
from torchyard_gui.bookings.calendar.block_cache import BlockCache
from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.display_list import DisplayList, Strip
from torchyard_gui.bookings.calendar.time_axis import Axis
from torchyard_gui.theme.icons import paint_state, pixmap
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

Align = Qt.AlignmentFlag
LINE = 15
LEFT = Align.AlignLeft | Align.AlignVCenter
LABEL_WIDTH = 120.0
"""Maximum width in pixels of the free space for a label beside a narrow block."""
RUNS_ON_X = 16
"""Total width in pixels of the margins around a label beside a narrow block."""
Measure = Callable[[str, bool], float]
"""Function that returns the width of a string in pixels. The second argument is True if the string is bold."""
READABLE = 42
"""Minimum width in pixels at which a shortened title is still shown."""


@dataclass(frozen=True)
class BlockLabel:
    """The strings drawn in and beside a block. Each string may be empty.

    `title` is bold. `more` is drawn below or after the title, or alone if there is no title. `initial` is the first
    letter of the owner's name, and `outside` is shown beside a narrow block.
    """

    title: str = ""
    more: str = ""
    initial: str = ""
    outside: str = ""


def label_for(
    width: float, height: float, title: str, person: str, gpus: str, ends: str, beside: float, measure: Measure
) -> BlockLabel:
    """Chooses the label of a block that fits the available space.

    Args:
        width: Width available in the block, in pixels.
        height: Height available in the block, in pixels.
        beside: Free width to the right of the block, in pixels.
    """
    two_lines = height >= 2 * LINE + 2
    below = _longest(width, (f"{person} · {gpus} · {ends}", f"{person} · {gpus}", person), measure)
    if measure(title, True) <= width:
        if two_lines:
            return BlockLabel(title, below)
        rest = _longest(width - measure(title, True) - 8, (f"{person} · {ends}", person), measure)
        return BlockLabel(title, rest)
    initial = person[:1]
    if width >= READABLE and (two_lines or not below):
        return BlockLabel(title, below if two_lines else "")
    fits = initial if initial and measure(initial, True) <= width else ""
    if beside >= READABLE:
        return BlockLabel("", "", fits, title)
    return BlockLabel("", below) if below else BlockLabel("", "", fits)


def _longest(width: float, texts: tuple[str, ...], measure: Measure) -> str:
    return next((text for text in texts if measure(text, False) <= width), "")


class BlockPainter:
    """Paints blocks. Text widths, labels, corners and the hatching are cached. `forget` must be called when the theme
    changes.
    """

    def __init__(self) -> None:
        self._widths: dict[tuple[str, bool], float] = {}
        self._hatch: QBrush | None = None
        self._metrics: tuple[QFontMetricsF, QFontMetricsF] | None = None
        self._bodies = BlockCache()
        self._labels: dict[tuple[str, int], BlockLabel] = {}
        self._labelled: tuple[int, Axis] | None = None

    def forget(self) -> None:
        self._widths.clear()
        self._labels.clear()
        self._bodies.forget()
        self._hatch = None
        self._metrics = None

    def measure(self, text: str, bold: bool) -> float:
        """Returns the width of a string in the 12 px font, in pixels."""
        width = self._widths.get((text, bold))
        if width is None:
            if self._metrics is None:
                self._metrics = QFontMetricsF(theme().font("small")), QFontMetricsF(theme().font("small_strong"))
            width = self._widths[text, bold] = self._metrics[bold].horizontalAdvance(text)
        return width

    def paint(
        self, painter: QPainter, picture: DisplayList, axis: Axis, clip: QRectF, selected: str = "", lifted: str = ""
    ) -> None:
        """Paints the blocks within `clip`.

        Blocks that do not match the filter are painted pale, and so are the blocks of the booking `lifted`, which the
        user is moving or resizing.
        """
        since, until = axis.starts[0], axis.days[-1].end
        for number, block in enumerate(picture.blocks):
            if block.top >= clip.bottom():
                break
            if block.bottom <= clip.top() or block.end <= since or block.start >= until:
                continue
            pale = block.booking.id in picture.dimmed or block.booking.id == lifted
            if pale:
                painter.setOpacity(0.35)
            self._block(painter, picture, axis, block, picture.strips[number], block.booking.id == selected)
            if pale:
                painter.setOpacity(1.0)

    def _beside(self, picture: DisplayList, block: Block, axis: Axis) -> float:
        """Returns the width in pixels of the free space for a label to the right of a block.

        The space ends before the next block on the block's first lane and is at most LABEL_WIDTH wide. The width is
        negative if the next block is too near.
        """
        right = axis.x_of(block.end)
        nearest = axis.width
        for other in picture.following(block):
            nearest = min(nearest, axis.x_of(other.start))
        return min(nearest - right - RUNS_ON_X, LABEL_WIDTH)

    def _block(
        self, painter: QPainter, picture: DisplayList, axis: Axis, block: Block, strip: Strip, is_selected: bool
    ) -> None:
        look = theme()
        booking = block.booking
        own = booking.owner == picture.person
        token = color_token(booking.owner, own=own)
        rect = rect_of(block, axis)
        if block.is_bar:
            painter.fillRect(rect, look.color(token))
            if is_selected:
                painter.setPen(look.pen("text"))
                painter.drawRect(rect.adjusted(0, 0, -1, -1))
            return
        self._bodies.draw(painter, rect, token, own, is_selected)
        for interval in picture.usage.idle.get(booking.id, ()):
            start, end = max(interval.start.timestamp(), block.start), min(interval.end.timestamp(), block.end)
            if end > start:
                x = axis.x_of(start)
                box = QRectF(x, rect.top(), axis.x_of(end) - x, rect.height()).intersected(rect)
                painter.fillRect(box, self._amber())
        for start, end, share in strip:
            x = axis.x_of(start)
            height = max(2.0, M.use_strip * share)
            box = QRectF(x, rect.bottom() - height, max(axis.x_of(end) - x, 1.0), height)
            painter.fillRect(box.intersected(rect), look.color("edge_used"))
        bar = min(M.own_bar if own else M.person_bar, rect.width())
        if block.start >= axis.starts[0]:
            painter.fillRect(QRectF(rect.left(), rect.top(), bar, rect.height()), look.color(token))
        above_strip = M.use_strip if strip else 1
        if picture.has_bar(block):  # The label must stay above a bar at the lower edge of the first lane.
            rect, above_strip = QRectF(rect.left(), rect.top(), rect.width(), M.lane - 3), M.use_strip
        self._words(painter, picture, axis, block, rect.adjusted(bar + 4, 2, -3, -above_strip))

    def _amber(self) -> QBrush:
        if self._hatch is None:
            self._hatch = QBrush(theme().color("wait", 0.55), Qt.BrushStyle.BDiagPattern)
        return self._hatch

    def _label(self, picture: DisplayList, axis: Axis, block: Block, width: float, height: float) -> BlockLabel:
        """Returns the label of a block. Labels are cached until the calendar or the shown days change."""
        if self._labelled != (id(picture), axis):
            self._labelled = (id(picture), axis)
            self._labels.clear()
        key = block.booking.id, block.top
        label = self._labels.get(key)
        if label is None:
            booking = block.booking
            fits = self.measure(booking.title, True) <= width
            label = self._labels[key] = label_for(
                width,
                height,
                booking.title,
                labels.owner_name(booking.owner, picture.person),
                self._gpus(block),
                labels.end_text(booking, picture.zone),
                0.0 if fits else self._beside(picture, block, axis),
                self.measure,
            )
        return label

    def _words(self, painter: QPainter, picture: DisplayList, axis: Axis, block: Block, room: QRectF) -> None:
        look = theme()
        booking = block.booking
        marks = self._marks(booking, picture)
        single = room.height() < M.lane
        room = room.adjusted(0, -1 if single else 1, 0, 0)
        label = self._label(picture, axis, block, room.width() - 16 * len(marks), room.height())
        x = room.left()
        line = QRectF(x, room.top(), room.width(), room.height() if single else LINE)
        if label.title or label.more or room.width() >= 14:
            for mark in marks:
                self._mark(painter, mark, QRectF(x, line.center().y() - 6, 12, 12))
                x += 16 if label.title or label.more else 0
                if not label.title and not label.more:
                    line.translate(0, LINE)
        line.setLeft(x)
        over = booking.state is not State.BOOKED and not booking.is_live
        if label.title:
            painter.setFont(look.font("small_strong"))
            painter.setPen(look.pen("text2" if over else "text"))
            title = label.title
            if self.measure(title, True) > line.width():
                title = painter.fontMetrics().elidedText(title, Qt.TextElideMode.ElideRight, int(line.width()))
            painter.drawText(self._base(line), title)
        painter.setFont(look.font("small"))
        painter.setPen(look.pen("text2"))
        if label.more and label.title and single:
            beyond = line.adjusted(self.measure(label.title, True) + 8, 0, 0, 0)
            painter.drawText(self._base(beyond), label.more)
        elif label.more:
            below = line.translated(0, LINE) if label.title else line
            below.setLeft(room.left() if label.title else x)
            painter.drawText(self._base(below), label.more)
        if label.initial:
            painter.setFont(look.font("small_strong"))
            painter.drawText(
                QRectF(room.left(), line.top(), room.width(), line.height()), Align.AlignCenter, label.initial
            )
        if label.outside:
            painter.setFont(look.font("small"))
            beside = self._beside(picture, block, axis)
            words_ = painter.fontMetrics().elidedText(label.outside, Qt.TextElideMode.ElideRight, int(beside + 8))
            if words_ != "…":
                painter.drawText(QRectF(room.right() + 6, block.top + 1, beside + 8, M.lane - 2), LEFT, words_)
        note = picture.notes.get(booking.id, "")
        if note and room.height() >= 3 * LINE and room.width() >= self.measure(note, True) + 16:
            soft = QRectF(room.left() - 2, room.top() + 2 * LINE + 1, self.measure(note, True) + 22, LINE + 2)
            painter.fillRect(soft, look.color("wait_soft"))
            paint_state(painter, QRectF(room.left(), room.top() + 2 * LINE + 4, 12, 12), "warning")
            painter.setFont(look.font("small_strong"))
            painter.setPen(look.pen("wait"))
            painter.drawText(QRectF(room.left() + 16, room.top() + 2 * LINE + 2, room.width() - 16, LINE), LEFT, note)

    def _base(self, box: QRectF) -> QPointF:
        """Returns the baseline origin that centres a 12 px text vertically.

        Drawing at a baseline is three times as fast as drawing into a rectangle.
        """
        if self._metrics is None:
            self._metrics = QFontMetricsF(theme().font("small")), QFontMetricsF(theme().font("small_strong"))
        metrics = self._metrics[0]
        return QPointF(box.left(), round(box.center().y() + (metrics.ascent() - metrics.descent()) / 2))

    def _gpus(self, block: Block) -> str:
        here, everywhere = len(block.slots), len(block.booking.gpus)
        if here == everywhere:
            return labels.slots_count(block.booking.gpus)
        if all(map(is_of_cluster, block.booking.gpus)):
            return labels.translate("Bookings", "{count} of {all} nodes").format(count=here, all=everywhere)
        return labels.translate("Bookings", "{count} of {all} GPUs").format(count=here, all=everywhere)

    def _marks(self, booking: Booking, picture: DisplayList) -> list[str]:
        marks = []
        if booking.run_id and picture.now is not None and booking.is_running(picture.now):
            marks.append("running")
        if booking.series_id:
            marks.append("repeat")
        if booking.id in picture.notes and any(map(is_of_cluster, booking.gpus)):
            marks.append("warning")  # The booking is not exclusive. Only a high block also shows the reason, as a note.
        return marks

    def _mark(self, painter: QPainter, mark: str, box: QRectF) -> None:
        if mark in ("running", "warning"):
            paint_state(painter, box, mark)
        else:
            painter.drawPixmap(box.topLeft(), pixmap(mark, 12, "text2", painter.device().devicePixelRatioF()))


def rect_of(block: Block, axis: Axis) -> QRectF:
    """Returns the rectangle of a block in whole pixels, with a margin of 1 px at the top and 2 px at the bottom."""
    x, right = round(axis.x_of(block.start)), round(axis.x_of(block.end))
    return QRectF(x, block.top + 1, max(right - x - 1, 4), block.bottom - block.top - 3)
