"""The calendar itself: one painted surface. Says what is wanted by signals, and changes nothing.

Drawn straight, without an item for each booking: of 256 lanes only those in sight are painted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date

from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QFocusEvent,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPixmap,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QLabel, QToolTip, QWidget

from torchyard_core.booking.find_slot import Fit
from torchyard_core.booking.model import Booking
from torchyard_gui.bookings import words
from torchyard_gui.bookings.blocks import Block
from torchyard_gui.bookings.gestures.draw_booking import DrawBooking
from torchyard_gui.bookings.gestures.keyed_edit import KeyedEdit
from torchyard_gui.bookings.gestures.move_booking import MoveBooking
from torchyard_gui.bookings.gestures.resize_booking import ResizeBooking
from torchyard_gui.bookings.keys import Keys
from torchyard_gui.bookings.lanes import Row
from torchyard_gui.bookings.painting import Ghost, Painter, boxes_of, fit_ghosts
from torchyard_gui.bookings.picture import Picture
from torchyard_gui.bookings.selection import Cursor
from torchyard_gui.bookings.time_axis import Axis, Span, axis_of, snapped, utc
from torchyard_gui.canvas.gestures.gesture import Gesture
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

EDGE = 6
"""Pixels at an end of a booking that resize it."""
SCROLL_WITHIN = 18
HOUR = 3600.0
Refuse = Callable[[Sequence[str], float, float, "Booking | None"], str]


class Surface(QAbstractScrollArea):
    """`set_picture` and `set_days` say what is shown; `refuse` is asked while something is dragged."""

    book_wanted = Signal(tuple, float, float)
    """GPUs, start, end."""
    change_wanted = Signal(object, tuple, float, float)
    """A Booking, and its new GPUs, start and end."""
    refused = Signal(str)
    """What was dropped, or keyed, cannot be: the reason."""
    selected = Signal(str)
    """A booking's id, or "" for none."""
    activated = Signal(str)
    fold_wanted = Signal(str)
    step_wanted = Signal(int)
    """To the next (1) or previous (-1) days."""
    fit_wanted = Signal(int)
    """A fit was clicked, or Enter pressed on it: its number, from 0."""
    context_requested = Signal(QPoint)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.picture = Picture()
        self.refuse: Refuse = lambda gpus, start, end, of: ""
        self.span: Span = "week"
        self.day = date.today()
        self.axis: Axis = axis_of("week", self.day, "UTC", 700)
        self.cursor_: Cursor | None = None
        self.edit: KeyedEdit | None = None
        self.fits: tuple[Fit, ...] = ()
        self.chosen_fit = 0
        self._selected = ""
        self._ghost: Ghost | None = None
        self._gesture: Gesture | None = None
        self._still: QPixmap | None = None
        """What does not move while something is dragged."""
        self._painter = Painter()
        self._keys = Keys(self)
        self.tip = QLabel(self.viewport())
        self.tip.setProperty("popup", True)
        self.tip.setTextFormat(Qt.TextFormat.PlainText)
        self.tip.setWordWrap(True)
        self.tip.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.tip.setContentsMargins(8, 5, 8, 5)
        self.tip.setAutoFillBackground(True)
        self.tip.hide()
        self.setFrameShape(QAbstractScrollArea.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setAccessibleName(self.tr("Calendar"))
        self.setAccessibleDescription(
            self.tr(
                "Arrows move by lane and quarter of an hour, Shift extends, Enter books. The agenda has it as a table"
            )
        )
        self.viewport().setAccessibleName(self.accessibleName())
        theme().changed.connect(self._theme_changed)

    # -- for the page

    def set_picture(self, picture: Picture) -> None:
        """Another state of the calendar; what the hand holds stays in it."""
        is_new_zone = picture.zone != self.axis.zone
        self.picture = picture
        if is_new_zone:
            self._measure()
        if self._selected and all(block.booking.id != self._selected for block in picture.blocks):
            self._select("")
        if self.edit is not None and all(block.booking != self.edit.booking for block in picture.blocks):
            self.cancel()
        if self.cursor_ is not None and not picture.lanes.lanes:
            self.cursor_ = None
        self._fit_scroll_bar()
        self._refresh()

    def set_days(self, span: Span, day: date) -> None:
        self.span, self.day = span, day
        self._measure()
        self._refresh()

    def set_fits(self, fits: Sequence[Fit], chosen: int = 0) -> None:
        """Numbered ghosts; none takes them away."""
        self.fits, self.chosen_fit = tuple(fits), chosen
        self._refresh()

    @property
    def selection(self) -> str:
        """The selected booking's id, or ""."""
        return self._selected

    @property
    def gesture(self) -> Gesture | None:
        return self._gesture

    @property
    def ghost(self) -> Ghost | None:
        """What is held, by hand or keys."""
        return self._ghost

    def select(self, booking_id: str) -> None:
        """Selects a booking and brings it into sight."""
        self._select(booking_id)
        block = next((one for one in self.picture.blocks if one.booking.id == booking_id), None)
        if block is not None:
            self._show_rows(block.top, block.bottom)

    def show_fit(self, number: int) -> None:
        """Makes a fit the chosen one, and brings it into sight."""
        self.chosen_fit = number
        boxes = self.boxes(self.fits[number].gpus, 0, 0)
        if boxes:
            self._show_rows(boxes[0][0], boxes[-1][1])
        self._refresh()

    def cancel(self) -> bool:
        """Esc: leaves what is under way. Whether there was something."""
        was = self._gesture is not None or self.edit is not None or self.cursor_ is not None
        if self._gesture is not None:
            gesture, self._gesture = self._gesture, None
            gesture.cancel()
        elif self.edit is not None:
            self.edit = None
            self.let_go()
        else:
            self.cursor_ = None
        self._still = None
        self._show_cursor_shape(None)
        self._refresh()
        return was

    # -- what gestures and keys ask (see gestures/ground.py)

    def second_at(self, position: QPoint) -> float:
        return self.axis.second_at(position.x() - M.lane_header)

    def lane_at(self, position: QPoint) -> Row | None:
        return self.picture.lanes.lane_at(self._content_y(position))

    def lane_rows(self) -> Sequence[Row]:
        return self.picture.lanes.lanes

    def hold(self, gpus: Sequence[str], start: float, end: float, of: Booking | None, at: QPoint) -> str:
        reason = self.refuse(gpus, start, end, of)
        caption = self._times(gpus, start, end)
        self._ghost = Ghost(self.boxes(gpus, start, end), caption, reason)
        self._say(f"{caption}\n{reason}" if reason else caption, at, bool(reason))
        self.viewport().update()
        return reason

    def let_go(self) -> None:
        self._ghost = None
        self.tip.hide()
        self.viewport().update()

    def boxes(self, gpus: Sequence[str], start: float, end: float) -> tuple[tuple[int, int, float, float], ...]:
        return boxes_of(gpus, start, end, self.picture.lanes)

    def block_of(self, cursor: Cursor) -> Block | None:
        """The booking that the keyboard is on."""
        if cursor.lane >= len(self.picture.lanes.lanes):
            return None
        row = self.picture.lanes.lanes[cursor.lane]
        return next(
            (
                block
                for block in self.picture.blocks
                if block.top <= row.top < block.bottom and block.start <= cursor.start < block.end
            ),
            None,
        )

    def set_cursor(self, cursor: Cursor | None) -> None:
        """Puts the keyboard there, and the booking that it is on into the selection."""
        self.cursor_ = cursor
        if cursor is not None and self.picture.lanes.lanes:
            rows = [self.picture.lanes.lanes[number] for number in cursor.lanes]
            self._show_rows(rows[0].top, rows[-1].bottom)
            block = self.block_of(cursor)
            self._select(block.booking.id if block else "")
        self._describe()
        self._refresh()

    def first_cursor(self) -> Cursor:
        """Where the keyboard begins: at the next hour, if it is in sight, for an hour."""
        now = self.picture.now.timestamp() if self.picture.now else self.axis.starts[0]
        start = now // HOUR * HOUR + HOUR if self.axis.starts[0] <= now < self.axis.days[-1].end else None
        begin = start if start is not None else self.axis.starts[0] + 9 * HOUR
        block = next((one for one in self.picture.blocks if one.booking.id == self._selected), None)
        lane = self.picture.lanes.number_of(block.slots[0].id) if block else 0
        if block is not None:
            begin = block.start
        return Cursor(lane, lane, begin, begin + HOUR)

    def gpus_of(self, cursor: Cursor) -> tuple[str, ...]:
        rows = self.picture.lanes.lanes
        return tuple(rows[number].slots[0].id for number in cursor.lanes if number < len(rows))

    def hold_keyed(self) -> None:
        """Shows what the keys have made of a booking."""
        if self.edit is not None:
            edit = self.edit
            boxes = self.boxes(edit.booking.gpus, edit.start, edit.end)
            at = QPoint(M.lane_header, M.days_header)
            if boxes:
                at += QPoint(int(self.axis.x_of(edit.start)), boxes[0][1] - self.verticalScrollBar().value())
            edit.reason = self.hold(edit.booking.gpus, edit.start, edit.end, edit.booking, at)

    # -- mouse

    def mousePressEvent(self, event: QMouseEvent) -> None:
        position = event.position().toPoint()
        if self._gesture is not None or event.button() != Qt.MouseButton.LeftButton:
            return
        self.edit = None
        if position.y() < M.days_header:
            return
        if position.x() < M.lane_header:
            row = self.picture.lanes.row_at(self._content_y(position))
            if row is not None and not row.is_lane:
                self.fold_wanted.emit(row.host)
            return
        row = self.picture.lanes.row_at(self._content_y(position))
        if row is None:
            self._select("")
            return
        fit = self._fit_at(position)
        if fit is not None:
            self.fit_wanted.emit(fit)
            return
        block = self.block_at(position)
        if block is not None:
            self.cursor_ = None
            self._select(block.booking.id)
            self._begin(self._gesture_on(block, position))
        elif row.is_lane:
            self._select("")
            self._begin(DrawBooking(self, position, self.book_wanted.emit, self.refused.emit, self._clicked))
        else:
            self._select("")
            if row.kind == "folded":
                self.fold_wanted.emit(row.host)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        position = event.position().toPoint()
        if self._gesture is None:
            self._hover(position)
            return
        self._scroll_along(position)
        self._gesture.move(position)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._gesture is None or event.button() != Qt.MouseButton.LeftButton:
            return
        gesture, self._gesture = self._gesture, None
        self._still = None
        gesture.finish(event.position().toPoint())
        self._show_cursor_shape(None)
        self.viewport().update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        block = self.block_at(event.position().toPoint())
        if block is not None and event.button() == Qt.MouseButton.LeftButton:
            self.activated.emit(block.booking.id)
        else:
            self.mousePressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        block = self.block_at(event.pos())
        if block is not None:
            self._select(block.booking.id)
        self.context_requested.emit(event.globalPos())

    # -- keys

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and (self.cancel()):
            return
        if self._gesture is not None or not self._keys.press(event):
            super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    # -- painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        if self._gesture is not None:
            if self._still is None:
                self._still = self._take_still()
            painter.drawPixmap(event.rect(), self._still, self._in_pixels(event.rect()))
        else:
            self._paint_still(painter, QRectF(event.rect()))
        self._paint_moving(painter)

    def paint_all(self, painter: QPainter, height: int | None = None) -> None:
        """Everything at once, lanes out of sight too: for pictures, and for measuring."""
        rect = QRectF(0, 0, self.viewport().width(), height or self.viewport().height())
        self._paint_still(painter, rect, scroll=0 if height else None)

    def _take_still(self) -> QPixmap:
        ratio = self.devicePixelRatioF()
        still = QPixmap(self.viewport().size() * ratio)
        still.setDevicePixelRatio(ratio)
        painter = QPainter(still)
        self._paint_still(painter, QRectF(self.viewport().rect()))
        painter.end()
        return still

    def _in_pixels(self, rect: QRect) -> QRect:
        ratio = self.devicePixelRatioF()
        return QRect(
            int(rect.x() * ratio), int(rect.y() * ratio), int(rect.width() * ratio), int(rect.height() * ratio)
        )

    def _paint_still(self, painter: QPainter, rect: QRectF, scroll: int | None = None) -> None:
        picture, axis, paint = self.picture, self.axis, self._painter
        down = M.days_header - (self.verticalScrollBar().value() if scroll is None else scroll)
        lifted = self._gesture.booking.id if isinstance(self._gesture, MoveBooking | ResizeBooking) else ""
        lanes = QRectF(M.lane_header, M.days_header, rect.right() - M.lane_header, rect.bottom() - M.days_header)
        body = lanes.intersected(rect)
        if not body.isEmpty():
            painter.save()
            painter.setClipRect(body)
            painter.translate(M.lane_header, down)
            clip = body.translated(-M.lane_header, -down)
            paint.ground(painter, picture, axis, clip)
            paint.folded(painter, picture, axis, clip)
            paint.blocks(painter, picture, axis, clip, self._selected, lifted)
            paint.unbooked(painter, picture, axis, clip)
            paint.now_line(painter, picture, axis, clip)
            painter.restore()
        head = QRectF(0, M.days_header, M.lane_header, rect.bottom() - M.days_header).intersected(rect)
        if not head.isEmpty():
            painter.save()
            painter.setClipRect(head)
            painter.translate(0, down)
            marked = self.cursor_.lanes if self.cursor_ is not None else range(0)
            paint.hosts(painter, picture, head.translated(0, -down), marked)
            painter.restore()
        if rect.top() < M.days_header:
            painter.save()
            painter.translate(M.lane_header, 0)
            painter.setClipRect(QRectF(0, 0, rect.right() - M.lane_header, M.days_header))
            paint.days(painter, picture, axis, QRectF(0, 0, rect.right() - M.lane_header, M.days_header))
            painter.restore()
            paint.corner(painter, picture, axis, QRectF(0, 0, M.lane_header, M.days_header))

    def _paint_moving(self, painter: QPainter) -> None:
        ghosts = list(fit_ghosts(self.fits, self.picture.lanes, self.chosen_fit)) if self.fits else []
        if self._ghost is not None:
            ghosts.append(self._ghost)
        shows_cursor = self.cursor_ is not None and self.hasFocus() and self._gesture is None
        if not ghosts and not shows_cursor:
            return
        painter.save()
        painter.setClipRect(self.viewport().rect().adjusted(M.lane_header, M.days_header, 0, 0))
        painter.translate(M.lane_header, M.days_header - self.verticalScrollBar().value())
        since, until = self.axis.starts[0], self.axis.days[-1].end
        seen = [ghost for ghost in ghosts if any(start < until and end > since for _, _, start, end in ghost.boxes)]
        self._painter.ghosts(painter, seen, self.axis)
        if shows_cursor and self.cursor_ is not None:
            cursor = self.cursor_
            boxes = self.boxes(self.gpus_of(cursor), cursor.start, cursor.end)
            if cursor.start < until and cursor.end > since:
                self._painter.cursor(painter, boxes, self.axis)
        painter.restore()

    # -- events of the frame

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._measure()
        self._fit_scroll_bar()
        self._still = None

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self._still = None
        self.tip.hide()
        self.viewport().update()

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            text = self.told_at(event.pos())
            QToolTip.showText(event.globalPos(), text, self.viewport())
            return True
        if event.type() == QEvent.Type.Leave:
            self._show_cursor_shape(None)
        return super().viewportEvent(event)

    def told_at(self, position: QPoint) -> str:
        """What hovering says: of a booking all, of headings the zone."""
        if position.y() < M.days_header:
            return self.tr("Times are of {zone}").format(zone=self.axis.zone)
        block = self.block_at(position)
        if block is None or self._gesture is not None:
            return ""
        return self.told_of(block.booking)

    def told_of(self, booking: Booking) -> str:
        """A booking in full, with its zone."""
        zone = self.axis.zone
        now = self.picture.now or booking.start
        lines = [
            booking.title,
            f"{words.name_of(booking.owner, self.picture.person)} · {words.slots_count(booking.gpus)}",
            f"{words.span_of(booking.start, booking.until, zone, now)} ({zone})",
            words.state_of(booking, now),
            self.picture.notes.get(booking.id, ""),
            booking.purpose,
        ]
        return "\n".join(filter(None, lines))

    def block_at(self, position: QPoint) -> Block | None:
        """The booking under the mouse; the later one where a released one and its successor touch."""
        if position.x() < M.lane_header or position.y() < M.days_header:
            return None
        y = self._content_y(position)
        x = position.x() - M.lane_header
        found = None
        for block in self.picture.blocks:
            if block.top > y:
                break
            if block.bottom > y:
                rect = self._painter.rect_of(block, self.axis)
                if rect.left() - 1 <= x <= rect.right() + 1:
                    found = block
        return found

    # -- inside

    def _gesture_on(self, block: Block, position: QPoint) -> Gesture:
        at_start, at_end = self._edges(block, position)
        if (at_start or at_end) and block.booking.is_live:
            change, refused = self.change_wanted.emit, self.refused.emit
            return ResizeBooking(self, block.booking, at_start, position, change, refused)
        return MoveBooking(self, block.booking, position, self.change_wanted.emit, self.refused.emit)

    def _edges(self, block: Block, position: QPoint) -> tuple[bool, bool]:
        rect = self._painter.rect_of(block, self.axis)
        reach = min(EDGE, rect.width() / 4)
        x = position.x() - M.lane_header
        return x - rect.left() <= reach, rect.right() - x <= reach

    def _fit_at(self, position: QPoint) -> int | None:
        x, y = position.x() - M.lane_header, self._content_y(position)
        for number, fit in enumerate(self.fits):
            for top, bottom, start, end in self.boxes(fit.gpus, fit.start.timestamp(), fit.end.timestamp()):
                if top <= y < bottom and self.axis.x_of(start) <= x <= self.axis.x_of(end):
                    return number
        return None

    def _begin(self, gesture: Gesture) -> None:
        self._gesture = gesture
        self._still = None

    def _clicked(self, position: QPoint) -> None:
        """A click on free time puts the keyboard there, for an hour."""
        row = self.lane_at(position)
        if row is not None:
            lane = self.picture.lanes.lanes.index(row)
            start = snapped(self.second_at(position) - HOUR / 8)
            self.set_cursor(Cursor(lane, lane, start, start + HOUR))

    def _hover(self, position: QPoint) -> None:
        block = self.block_at(position)
        if block is None:
            row = self.picture.lanes.row_at(self._content_y(position))
            on_header = position.x() < M.lane_header and position.y() > M.days_header
            is_pressed = row is not None and not row.is_lane and (on_header or row.kind == "folded")
            self._show_cursor_shape(Qt.CursorShape.PointingHandCursor if is_pressed else None)
        elif any(self._edges(block, position)) and block.booking.is_live:
            self._show_cursor_shape(Qt.CursorShape.SizeHorCursor)
        else:
            self._show_cursor_shape(Qt.CursorShape.OpenHandCursor if block.booking.is_live else None)

    def _show_cursor_shape(self, shape: Qt.CursorShape | None) -> None:
        if shape is None:
            self.viewport().unsetCursor()
        elif self.viewport().cursor().shape() != shape:
            self.viewport().setCursor(shape)

    def _scroll_along(self, position: QPoint) -> None:
        bar = self.verticalScrollBar()
        if position.y() < M.days_header + SCROLL_WITHIN:
            bar.setValue(bar.value() - M.lane)
        elif position.y() > self.viewport().height() - SCROLL_WITHIN:
            bar.setValue(bar.value() + M.lane)

    def _select(self, booking_id: str) -> None:
        if booking_id != self._selected:
            self._selected = booking_id
            self.selected.emit(booking_id)
            self._refresh()

    def _times(self, gpus: Sequence[str], start: float, end: float) -> str:
        now = self.picture.now or utc(start)
        when = words.span_of(utc(start), utc(end), self.axis.zone, now)
        return f"{when} · {words.length(end - start)} · {words.slots_count(gpus)}"

    def _say(self, text: str, at: QPoint, is_bad: bool) -> None:
        self.tip.setText(text)
        self.tip.setProperty("ink", "fail" if is_bad else "")
        self.tip.style().unpolish(self.tip)
        self.tip.style().polish(self.tip)
        room = self.viewport().rect()
        width = min(self.tip.fontMetrics().boundingRect(0, 0, 320, 400, 0, text).width() + 26, 346)
        self.tip.setFixedWidth(width)
        self.tip.setFixedHeight(self.tip.heightForWidth(width))
        place = at + QPoint(14, 18)
        place.setX(max(0, min(place.x(), room.right() - width - 4)))
        if place.y() + self.tip.height() > room.bottom():
            place.setY(at.y() - self.tip.height() - 10)
        self.tip.move(place)
        self.tip.show()
        self.tip.raise_()

    def _describe(self) -> None:
        """Tells a screen reader where the keyboard is."""
        cursor = self.cursor_
        if cursor is None:
            return
        block = self.block_of(cursor)
        rows = [self.picture.lanes.lanes[number].slots[0].name for number in cursor.lanes]
        text = f"{', '.join(rows)}: {self._times(self.gpus_of(cursor), cursor.start, cursor.end)}"
        if block is not None:
            text += f". {self.told_of(block.booking)}"
        self.setAccessibleDescription(text)

    def _show_rows(self, top: int, bottom: int) -> None:
        bar, room = self.verticalScrollBar(), self.viewport().height() - M.days_header
        if top < bar.value():
            bar.setValue(max(0, top - M.host_row))
        elif bottom > bar.value() + room:
            bar.setValue(min(bottom - room, top))

    def _content_y(self, position: QPoint) -> float:
        return position.y() - M.days_header + self.verticalScrollBar().value()

    def _measure(self) -> None:
        width = max(self.viewport().width() - M.lane_header, 100)
        self.axis = axis_of(self.span, self.day, self.picture.zone, width)

    def _fit_scroll_bar(self) -> None:
        room = self.viewport().height() - M.days_header
        bar = self.verticalScrollBar()
        bar.setPageStep(max(room, 1))
        bar.setSingleStep(M.lane)
        bar.setRange(0, max(0, self.picture.lanes.height + 1 - room))

    def _theme_changed(self) -> None:
        self._painter.forget()
        self._refresh()

    def _refresh(self) -> None:
        self._still = None
        self.viewport().update()
