"""Draws a calendar: lanes, blocks, use, fits and the headings. Told what to draw, it knows nothing of mouse or keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen

from torchyard_core.booking.find_slot import Fit
from torchyard_core.booking.model import Booking, State
from torchyard_gui.bookings import words
from torchyard_gui.bookings.blocks import Block, hue_of
from torchyard_gui.bookings.bodies import Bodies
from torchyard_gui.bookings.labels import Label, label_for
from torchyard_gui.bookings.lanes import Lanes, Row
from torchyard_gui.bookings.picture import Picture, Strip
from torchyard_gui.bookings.time_axis import Axis, local_day, zone_mark
from torchyard_gui.theme.icons import paint_state, pixmap
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

Align = Qt.AlignmentFlag
LINE = 15
LEFT = Align.AlignLeft | Align.AlignVCenter
RUNS_ON_X = 16
"""How far the label of a narrow block may begin beside it."""


@dataclass(frozen=True)
class Ghost:
    """What is being drawn, moved or chosen: boxes of lanes and time. `reason` says why it cannot be."""

    boxes: tuple[tuple[int, int, float, float], ...]
    """(top, bottom, start, end) each."""
    caption: str = ""
    reason: str = ""
    number: int = 0
    """Of a fit; 0 is what the hand or the keyboard holds."""
    is_chosen: bool = False


class Painter:
    """Keeps what is dear to make: how wide texts are, pens, brushes. `forget` when the theme changes."""

    def __init__(self) -> None:
        self._widths: dict[tuple[str, bool], float] = {}
        self._hatch: QBrush | None = None
        self._metrics: tuple[QFontMetricsF, QFontMetricsF] | None = None
        self._bodies = Bodies()
        self._labels: dict[tuple[str, int], Label] = {}
        self._labelled: tuple[int, Axis] | None = None

    def forget(self) -> None:
        self._widths.clear()
        self._labels.clear()
        self._bodies.forget()
        self._hatch = None
        self._metrics = None

    def measure(self, text: str, bold: bool) -> float:
        """Of 12 px text."""
        width = self._widths.get((text, bold))
        if width is None:
            if self._metrics is None:
                self._metrics = QFontMetricsF(theme().font("small")), QFontMetricsF(theme().font("small_strong"))
            width = self._widths[text, bold] = self._metrics[bold].horizontalAdvance(text)
        return width

    # -- the days

    def ground(self, painter: QPainter, picture: Picture, axis: Axis, clip: QRectF) -> None:
        """Columns and lanes, before anything lies on them. The origin is the first lane's first moment."""
        look = theme()
        painter.fillRect(clip, look.color("s0"))
        bottom = min(clip.bottom(), float(picture.lanes.height))
        if bottom <= clip.top():
            return
        lanes = QRectF(clip.left(), clip.top(), clip.width(), bottom - clip.top())
        painter.fillRect(lanes, look.color("s2"))
        now_x = axis.x_of(picture.now.timestamp()) if picture.now else 0.0
        painter.fillRect(lanes.intersected(QRectF(0, lanes.top(), now_x, lanes.height())), look.color("s1"))
        for number, day in enumerate(axis.days):
            if day.date.weekday() >= 5:
                column = QRectF(number * axis.column, lanes.top(), axis.column, lanes.height())
                painter.fillRect(lanes.intersected(column), look.color("s1"))
        painter.setPen(look.pen("hair"))
        for row in picture.lanes.between(clip.top(), bottom):
            if row.kind == "host":
                painter.fillRect(QRectF(clip.left(), row.top, clip.width(), row.height), look.color("s0"))
            faint = row.is_lane and row is not picture.lanes.rows[-1]
            painter.setPen(QPen(look.color("hair", 0.55)) if faint else look.pen("hair"))
            painter.drawLine(QPointF(clip.left(), row.bottom - 0.5), QPointF(clip.right(), row.bottom - 0.5))
        painter.setPen(look.pen("hair"))
        for number in range(1, len(axis.days)):
            x = round(number * axis.column) + 0.5
            painter.drawLine(QPointF(x, lanes.top()), QPointF(x, lanes.bottom()))

    def folded(self, painter: QPainter, picture: Picture, axis: Axis, clip: QRectF) -> None:
        """Steps of how many slots of a folded host are booked: `3 of 4`."""
        look = theme()
        since, until = axis.starts[0], axis.days[-1].end
        painter.setFont(look.font("tiny"))
        for row in picture.lanes.between(clip.top(), clip.bottom()):
            if row.kind != "folded":
                continue
            room = row.height - 12
            for interval, count in picture.folded.get(row.host, ()):
                start, end = interval.start.timestamp(), interval.end.timestamp()
                if end <= since or start >= until:
                    continue
                x, right = axis.x_of(start), axis.x_of(end)
                height = max(4.0, room * count / len(row.slots))
                box = QRectF(x, row.bottom - 6 - height, max(right - x, 1.0), height)
                painter.fillRect(box, look.color("edge_used", 0.30 if look.is_dark else 0.26))
                text = words.translate("Bookings", "{count} of {all}").format(count=count, all=len(row.slots))
                if right - x >= 40:
                    painter.setPen(look.pen("text"))
                    painter.drawText(QRectF(x + 6, row.top, right - x - 8, row.height), LEFT, text)

    # -- bookings

    def blocks(
        self,
        painter: QPainter,
        picture: Picture,
        axis: Axis,
        clip: QRectF,
        selected: str = "",
        lifted: str = "",
    ) -> None:
        """`lifted` is being moved: its old place is pale."""
        since, until = axis.starts[0], axis.days[-1].end
        for number, block in enumerate(picture.blocks):
            if block.top >= clip.bottom():
                break
            if block.bottom <= clip.top() or block.end <= since or block.start >= until:
                continue
            pale = block.booking.id in picture.paled or block.booking.id == lifted
            if pale:
                painter.setOpacity(0.35)
            self._block(painter, picture, axis, block, picture.strips[number], block.booking.id == selected)
            if pale:
                painter.setOpacity(1.0)

    def rect_of(self, block: Block, axis: Axis) -> QRectF:
        """Where a block lies, in whole pixels; a pixel of air to the lanes above and below."""
        x, right = round(axis.x_of(block.start)), round(axis.x_of(block.end))
        return QRectF(x, block.top + 1, max(right - x - 1, 4), block.bottom - block.top - 3)

    def _beside(self, picture: Picture, block: Block, axis: Axis) -> float:
        """How much is free to the right of a block, up to the next on its first lane."""
        right = axis.x_of(block.end)
        nearest = axis.width
        for other in picture.following(block):
            nearest = min(nearest, axis.x_of(other.start))
        return min(nearest - right - RUNS_ON_X, 120.0)

    def _block(
        self, painter: QPainter, picture: Picture, axis: Axis, block: Block, strip: Strip, is_selected: bool
    ) -> None:
        look = theme()
        booking = block.booking
        own = booking.owner == picture.person
        token = "accent" if own else f"person{hue_of(booking.owner) + 1}"
        rect = self.rect_of(block, axis)
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
        self._words(painter, picture, axis, block, rect.adjusted(bar + 4, 2, -3, -above_strip))

    def _amber(self) -> QBrush:
        if self._hatch is None:
            self._hatch = QBrush(theme().color("wait", 0.55), Qt.BrushStyle.BDiagPattern)
        return self._hatch

    def _label(self, picture: Picture, axis: Axis, block: Block, width: float, height: float) -> Label:
        """What is written in a block: found once, until calendar or days are others."""
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
                words.name_of(booking.owner, picture.person),
                self._gpus(block),
                words.ends(booking, picture.zone),
                0.0 if fits else self._beside(picture, block, axis),
                self.measure,
            )
        return label

    def _words(self, painter: QPainter, picture: Picture, axis: Axis, block: Block, room: QRectF) -> None:
        look = theme()
        booking = block.booking
        marks = self._marks(booking, picture)
        single = block.bottom - block.top <= M.lane
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
        """Where 12 px text stands that is in the middle of a box: a third of the time of letting Qt lay it out."""
        if self._metrics is None:
            self._metrics = QFontMetricsF(theme().font("small")), QFontMetricsF(theme().font("small_strong"))
        metrics = self._metrics[0]
        return QPointF(box.left(), round(box.center().y() + (metrics.ascent() - metrics.descent()) / 2))

    def _gpus(self, block: Block) -> str:
        here, everywhere = len(block.slots), len(block.booking.gpus)
        if here == everywhere:
            return words.slots_count(block.booking.gpus)
        return words.translate("Bookings", "{count} of {all} GPUs").format(count=here, all=everywhere)

    def _marks(self, booking: Booking, picture: Picture) -> list[str]:
        marks = []
        if booking.run_id and picture.now is not None and booking.is_running(picture.now):
            marks.append("running")
        if booking.series_id:
            marks.append("repeat")
        return marks

    def _mark(self, painter: QPainter, mark: str, box: QRectF) -> None:
        if mark == "running":
            paint_state(painter, box, mark)
        else:
            painter.drawPixmap(box.topLeft(), pixmap(mark, 12, "text2", painter.device().devicePixelRatioF()))

    def unbooked(self, painter: QPainter, picture: Picture, axis: Axis, clip: QRectF) -> None:
        """Dashed amber boxes where somebody uses a GPU that nobody has booked."""
        pen = QPen(theme().color("wait"), 1)
        pen.setDashPattern([3, 2])
        painter.setBrush(Qt.BrushStyle.NoBrush)
        since, until = axis.starts[0], axis.days[-1].end
        for gpu, times in picture.usage.unbooked.items():
            row = picture.lanes.lane_of.get(gpu)
            if row is None or row.bottom <= clip.top() or row.top >= clip.bottom():
                continue
            for interval in times:
                start, end = interval.start.timestamp(), interval.end.timestamp()
                if end <= since or start >= until:
                    continue
                x = axis.x_of(start)
                box = QRectF(x + 0.5, row.top + 3.5, max(axis.x_of(end) - x - 1, 4.0), row.height - 7)
                painter.setPen(pen)
                painter.drawRoundedRect(box, 2, 2)
                painter.fillRect(QRectF(box.left(), box.bottom() - 1, box.width(), 2), theme().color("edge_used"))

    # -- what is not there yet

    def ghosts(self, painter: QPainter, ghosts: Iterable[Ghost], axis: Axis) -> None:
        """Fits with their numbers, and what the hand holds."""
        look = theme()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for ghost in ghosts:
            token = "fail" if ghost.reason else "accent"
            pen = QPen(look.color(token), 1.5)
            pen.setDashPattern([3, 2])
            painter.setPen(pen)
            painter.setBrush(look.color(token, 0.20 if ghost.is_chosen or not ghost.number else 0.12))
            for top, bottom, start, end in ghost.boxes:
                x = axis.x_of(start)
                box = QRectF(x + 1, top + 1.5, max(axis.x_of(end) - x - 2, 3), bottom - top - 3)
                painter.setPen(pen)
                painter.drawRoundedRect(box, M.block_radius, M.block_radius)
                if ghost.number:
                    self._number(painter, box.center(), ghost.number, min(18.0, box.width(), box.height()))
                    painter.setBrush(look.color(token, 0.20 if ghost.is_chosen else 0.12))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _number(self, painter: QPainter, center: QPointF, number: int, size: float) -> None:
        look = theme()
        circle = QRectF(center.x() - size / 2, center.y() - size / 2, size, size)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.brush("accent"))
        painter.drawEllipse(circle)
        painter.setPen(look.pen("on_accent"))
        painter.setFont(look.font("tiny"))
        painter.drawText(circle, Align.AlignCenter, str(number))

    def cursor(self, painter: QPainter, boxes: Sequence[tuple[int, int, float, float]], axis: Axis) -> None:
        """The focus ring of the keyboard: 2 px, in ink, apart from every selection."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(theme().color("text"), M.focus_ring))
        for top, bottom, start, end in boxes:
            x = axis.x_of(start)
            painter.drawRoundedRect(QRectF(x - 1, top, max(axis.x_of(end) - x + 2, 5), bottom - top - 1), 4, 4)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def now_line(self, painter: QPainter, picture: Picture, axis: Axis, clip: QRectF) -> None:
        """1 px of ink."""
        if picture.now is None or not axis.starts[0] <= picture.now.timestamp() < axis.days[-1].end:
            return
        x = round(axis.x_of(picture.now.timestamp()))
        bottom = min(clip.bottom(), float(picture.lanes.height))
        painter.fillRect(QRectF(x, clip.top(), 1, bottom - clip.top()), theme().color("text", 0.75))

    # -- headings

    def days(self, painter: QPainter, picture: Picture, axis: Axis, rect: QRectF) -> None:
        """Days and hours across. The origin is the first day's left border, at the top."""
        look = theme()
        painter.fillRect(rect, look.color("s1"))
        today = local_day(picture.now, axis.zone) if picture.now else None
        narrow = axis.column < 72
        for number, day in enumerate(axis.days):
            x = number * axis.column
            painter.setPen(look.pen("hair"))
            if number:
                painter.drawLine(QPointF(round(x) + 0.5, 0), QPointF(round(x) + 0.5, rect.height()))
            text = str(day.date.day) if narrow else words.day_name(day.date, "ddd d")
            if narrow and axis.column >= 24 and not number:
                text = str(day.date.day)
            painter.setFont(look.font("strong"))
            box = QRectF(x + (4 if narrow else 12), 5, axis.column - 6, 18)
            if day.date == today:
                pill = QRectF(box.left() - 6, 4, painter.fontMetrics().horizontalAdvance(text) + 12, 20)
                painter.setRenderHint(QPainter.RenderHint.Antialiasing)
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(look.brush("accent"))
                painter.drawRoundedRect(pill, 10, 10)
                painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
                painter.setPen(look.pen("on_accent"))
            else:
                painter.setPen(look.pen("text" if day.date.weekday() < 5 else "text2"))
            painter.drawText(box, LEFT, text)
            if narrow:
                painter.setFont(look.font("tiny"))
                painter.setPen(look.pen("text3"))
                painter.drawText(QRectF(x + 4, 25, axis.column - 4, 16), LEFT, words.day_name(day.date, "ddd")[:2])
        self._hours(painter, picture, axis)
        painter.setPen(look.pen("hair"))
        painter.drawLine(QPointF(rect.left(), rect.bottom() - 0.5), QPointF(rect.right(), rect.bottom() - 0.5))

    def _hours(self, painter: QPainter, picture: Picture, axis: Axis) -> None:
        look = theme()
        painter.setFont(look.font("tiny"))
        painter.setPen(look.pen("text3"))
        now = picture.now
        shown = now is not None and axis.starts[0] <= now.timestamp() < axis.days[-1].end
        now_x = axis.x_of(now.timestamp()) if now is not None and shown else -1000.0
        for x, text in axis.ticks():
            if abs(x - now_x) > 32:
                painter.drawText(QRectF(x - 16, 25, 32, 16), Align.AlignCenter, text)
        if now is None or not shown or axis.column < 72:
            return
        text = words.clock(now, axis.zone)
        width = painter.fontMetrics().horizontalAdvance(text) + 14
        pill = QRectF(min(max(now_x - width / 2, 0), axis.width - width), 25, width, 17)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.brush("text"))
        painter.drawRoundedRect(pill, 8.5, 8.5)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.setPen(look.pen("s2"))
        painter.drawText(pill, Align.AlignCenter, text)

    def corner(self, painter: QPainter, picture: Picture, axis: Axis, rect: QRectF) -> None:
        """The zone, where the headings meet."""
        look = theme()
        painter.fillRect(rect, look.color("s1"))
        painter.setFont(look.font("tiny"))
        painter.setPen(look.pen("text3"))
        text = zone_mark(picture.now or axis.since + timedelta(hours=12), axis.zone)
        painter.drawText(rect.adjusted(16, 23, -4, 0), LEFT, text)
        painter.setPen(look.pen("hair"))
        painter.drawLine(rect.bottomLeft() + QPointF(0, -0.5), rect.bottomRight() + QPointF(0, -0.5))
        painter.drawLine(rect.topRight() + QPointF(-0.5, 0), rect.bottomRight() + QPointF(-0.5, 0))

    def hosts(self, painter: QPainter, picture: Picture, clip: QRectF, marked: range) -> None:
        """Hosts and lanes down. The origin is the first row; `marked` lanes are those that the keyboard is on."""
        look = theme()
        painter.fillRect(clip, look.color("s1"))
        marked_lanes = {picture.lanes.lanes[number].top for number in marked if number < len(picture.lanes.lanes)}
        for row in picture.lanes.between(clip.top(), clip.bottom()):
            if row.is_lane:
                self._lane(painter, row, row.top in marked_lanes)
            else:
                self._host(painter, picture, row)
        painter.setPen(look.pen("hair"))
        x = M.lane_header - 0.5
        painter.drawLine(QPointF(x, clip.top()), QPointF(x, clip.bottom()))

    def _lane(self, painter: QPainter, row: Row, is_marked: bool) -> None:
        look = theme()
        slot = row.slots[0]
        name = words.translate("Bookings", "CPU") if slot.index is None else f"GPU {slot.index}"
        painter.setFont(look.font("small_strong" if is_marked else "small"))
        painter.setPen(look.pen("text" if is_marked else "text2"))
        painter.drawText(QRectF(44, row.top, M.lane_header - 48, row.height), LEFT, name)

    def _host(self, painter: QPainter, picture: Picture, row: Row) -> None:
        look = theme()
        painter.setPen(look.pen("hair"))
        for y in (row.top, row.bottom) if row.kind == "host" else (row.bottom,):
            if y:
                painter.drawLine(QPointF(0, y - 0.5), QPointF(M.lane_header, y - 0.5))
        middle = row.top + row.height / 2
        chevron = "chevron-right" if row.kind == "folded" else "chevron-down"
        ratio = painter.device().devicePixelRatioF()
        painter.drawPixmap(QPointF(9, middle - 7), pixmap(chevron, 14, "text2", ratio))
        paint_state(painter, QRectF(26, middle - 6, 12, 12), picture.states.get(row.host, "unknown"))
        painter.setFont(look.font("strong"))
        painter.setPen(look.pen("text"))
        room = M.lane_header - 44 - 6
        name = painter.fontMetrics().elidedText(row.host, Qt.TextElideMode.ElideMiddle, room)
        painter.drawText(QRectF(44, row.top, room, row.height), LEFT, name)
        left = 44 + painter.fontMetrics().horizontalAdvance(name) + 8
        painter.setFont(look.font("tiny"))
        aside = picture.asides.get(row.host, "")
        rest = M.lane_header - 4 - left
        if aside and rest > 24:
            painter.setPen(look.pen("text3"))
            text = painter.fontMetrics().elidedText(aside, Qt.TextElideMode.ElideRight, int(rest))
            painter.drawText(QRectF(left, row.top, rest, row.height), LEFT, text)


def boxes_of(gpus: Iterable[str], start: float, end: float, lanes: Lanes) -> tuple[tuple[int, int, float, float], ...]:
    """A group of GPUs at a time, as few boxes; of folded hosts their row."""
    strips: set[tuple[int, int]] = set()
    folded = {slot.id: row for row in lanes.rows if row.kind == "folded" for slot in row.slots}
    for gpu in gpus:
        row = lanes.lane_of.get(gpu) or folded.get(gpu)
        if row is not None:
            strips.add((row.top, row.bottom))
    merged: list[tuple[int, int]] = []
    for top, bottom in sorted(strips):
        if merged and merged[-1][1] == top:
            merged[-1] = (merged[-1][0], bottom)
        else:
            merged.append((top, bottom))
    return tuple((top, bottom, start, end) for top, bottom in merged)


def fit_ghosts(fits: Sequence[Fit], lanes: Lanes, chosen: int) -> tuple[Ghost, ...]:
    """Fits as numbered ghosts; `chosen` is the one that Enter books."""
    return tuple(
        Ghost(
            boxes_of(fit.gpus, fit.start.timestamp(), fit.end.timestamp(), lanes),
            number=number + 1,
            is_chosen=number == chosen,
        )
        for number, fit in enumerate(fits)
    )
