"""The calendar widget. It emits requests as signals and does not change bookings itself.

The widget paints the lanes itself instead of creating an item per booking. It paints only the visible lanes, because a
calendar may have 256 lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from PySide6.QtCore import QEvent, QPoint, QRectF, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QFocusEvent,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QToolTip, QWidget

from torchyard_core.booking.model import Booking
from torchyard_core.booking.search.slot_search import Fit
from torchyard_gui.bookings.calendar.background_painting import unbooked_boxes
from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.calendar_geometry import CalendarGeometry
from torchyard_gui.bookings.calendar.calendar_painting import CalendarPainter, SnapshotCache
from torchyard_gui.bookings.calendar.calendar_target import Refuse
from torchyard_gui.bookings.calendar.display_list import DisplayList, rows_changed
from torchyard_gui.bookings.calendar.hit_testing import block_at, block_under, first_cursor, labelled_block_at
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor, KeyboardEdit
from torchyard_gui.bookings.calendar.keyboard_input import KeyboardInput
from torchyard_gui.bookings.calendar.mouse_input import MouseInput, is_left
from torchyard_gui.bookings.calendar.overlays import Overlay, fit_overlays, paint_cursor, paint_overlays
from torchyard_gui.bookings.calendar.time_axis import Span, drag_step
from torchyard_gui.bookings.calendar.tooltips import (
    DragTooltip,
    booking_tooltip,
    cursor_description,
    times_tooltip,
    use_tooltip,
)
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.gesture import Gesture


class CalendarView(CalendarGeometry):
    """Calendar widget with painting, selection, and mouse and keyboard input.

    `refuse` is called during a drag or a keyboard edit, and returns the reason why the booking would be refused, or "".
    """

    book_wanted = Signal(tuple, float, float)
    """Emitted with GPUs, start and end."""
    change_wanted = Signal(object, tuple, float, float)
    """Emitted with a Booking and its new GPUs, start and end."""
    refused = Signal(str)
    """Emitted with the reason why a change by mouse or keyboard is refused."""
    selected = Signal(str)
    """Emitted with the ID of the selected booking, or "" if none is selected."""
    activated = Signal(str)
    fold_wanted = Signal(str)
    step_wanted = Signal(int)
    """Emitted with 1 if the user wants to see the next days, or -1 for the previous days."""
    fit_pressed = Signal(int)
    """Emitted with the index of the proposed booking that a click or an arrow key selected."""
    fit_wanted = Signal(int)
    """Emitted with the index of the proposed booking that the user wants to book."""
    context_requested = Signal(QPoint)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.refuse: Refuse = lambda gpus, start, end, of: ""
        self.cursor_: Cursor | None = None
        self.edit: KeyboardEdit | None = None
        self.fits: tuple[Fit, ...] = ()
        self.chosen_fit = 0
        self._selected = ""
        self._is_fine = False
        self._ghost: Overlay | None = None
        self._mouse = MouseInput(self)
        self.still = SnapshotCache(self, self._paint_still)
        self._painter = CalendarPainter()
        self._keys = KeyboardInput(self)
        self.tip = DragTooltip(self)
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

    def set_picture(self, picture: DisplayList) -> None:
        """Replaces the display list. A gesture in progress continues."""
        rows = rows_changed(self.picture, picture)
        shown = self._selected, self.edit, self.cursor_, self.verticalScrollBar().maximum()
        super().set_picture(picture)
        if self._selected and all(block.booking.id != self._selected for block in picture.blocks):
            self.select_quietly("")
        if self.edit is not None and all(block.booking != self.edit.booking for block in picture.blocks):
            self.cancel()
        if self.cursor_ is not None and not picture.lanes.lanes:
            self.cursor_ = None
        if rows is None or shown != (self._selected, self.edit, self.cursor_, self.verticalScrollBar().maximum()):
            self._refresh()
        else:
            self._refresh_rows(rows)

    def set_days(self, span: Span, day: date) -> None:
        super().set_days(span, day)
        self._refresh()

    def set_fits(self, fits: Sequence[Fit], chosen: int = 0) -> None:
        """Shows proposed bookings with their numbers. An empty sequence removes them."""
        self.fits, self.chosen_fit = tuple(fits), chosen
        self._refresh()

    @property
    def selection(self) -> str:
        """The ID of the selected booking, or "" if none is selected."""
        return self._selected

    @property
    def gesture(self) -> Gesture | None:
        return self._mouse.gesture

    @property
    def ghost(self) -> Overlay | None:
        """The preview of the drag or keyboard edit in progress, or None if there is none."""
        return self._ghost

    def select(self, booking_id: str) -> None:
        """Selects a booking and scrolls to it."""
        self.select_quietly(booking_id)
        block = next((one for one in self.picture.blocks if one.booking.id == booking_id), None)
        if block is not None:
            self.show_rows(block.top, block.bottom)

    def show_fit(self, number: int) -> None:
        """Selects one of the proposed bookings by its index and scrolls to it."""
        self.chosen_fit = number
        boxes = self.boxes(self.fits[number].gpus, 0, 0)
        if boxes:
            self.show_rows(boxes[0][0], boxes[-1][1])
        self._refresh()

    def cancel(self) -> bool:
        """Ends the gesture in progress or, if there is none, the keyboard edit. If neither exists, the keyboard cursor
        is removed.

        Returns:
            Whether there was a gesture, an edit or a cursor to end.
        """
        was = self.gesture is not None or self.edit is not None or self.cursor_ is not None
        if self._mouse.cancel():
            pass  # Esc first ends a gesture in progress, and only the next Esc ends a keyboard edit.
        elif self.edit is not None:
            self.edit = None
            self.end_preview()
        else:
            self.cursor_ = None
        self._mouse.leave()
        self._refresh()
        return was

    def show_preview(self, gpus: Sequence[str], start: float, end: float, of: Booking | None, at: QPoint) -> str:
        reason = self.refuse(gpus, start, end, of)
        caption = times_tooltip(gpus, start, end, self.picture, self.axis.zone)
        self._ghost = Overlay(self.boxes(gpus, start, end), caption, reason)
        self.tip.say(f"{caption}\n{reason}" if reason else caption, at, is_bad=bool(reason))
        self.viewport().update()
        return reason

    def end_preview(self) -> None:
        self._ghost = None
        self.tip.hide()
        self.viewport().update()

    def block_of(self, cursor: Cursor) -> Block | None:
        """Returns the block under the keyboard cursor."""
        return block_under(cursor, self.picture)

    def set_cursor(self, cursor: Cursor | None) -> None:
        """Moves the keyboard cursor and selects the booking under it, if any. None removes the cursor."""
        self.cursor_ = cursor
        if cursor is not None and self.picture.lanes.lanes:
            rows = [self.picture.lanes.lanes[number] for number in cursor.lanes]
            self.show_rows(rows[0].top, rows[-1].bottom)
            block = self.block_of(cursor)
            self.select_quietly(block.booking.id if block else "")
        self._describe()
        self._refresh()

    def first_cursor(self) -> Cursor:
        """Returns the initial keyboard cursor."""
        return first_cursor(self.picture, self.axis, self._selected)

    def preview_edit(self) -> None:
        """Shows a preview of the keyboard edit."""
        if self.edit is not None:
            edit = self.edit
            boxes = self.boxes(edit.booking.gpus, edit.start, edit.end)
            at = QPoint(M.lane_header, M.days_header)
            if boxes:
                at += QPoint(int(self.axis.x_of(edit.start)), boxes[0][1] - self.verticalScrollBar().value())
            edit.reason = self.show_preview(edit.booking.gpus, edit.start, edit.end, edit.booking, at)

    def drag_step(self) -> float:
        """Returns the step in seconds to which a drag rounds times. While Alt is pressed, the step is finer."""
        return drag_step(self.span, is_fine=self._is_fine)

    def snapped(self, second: float) -> float:
        """Rounds a time, in seconds since 1970, to the step of a drag."""
        return self.axis.snapped(second, self.drag_step())

    def _take_modifiers(self, event: QMouseEvent) -> None:
        self._is_fine = bool(event.modifiers() & Qt.KeyboardModifier.AltModifier)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._take_modifiers(event)
        if is_left(event.button()):
            self._mouse.press(event.position().toPoint())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._take_modifiers(event)
        self._mouse.move(event.position().toPoint())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._take_modifiers(event)
        if is_left(event.button()):
            self._mouse.release(event.position().toPoint())

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        block = self._mouse.pressed
        if block is not None and is_left(event.button()):
            self.activated.emit(block.booking.id)
        else:
            self.mousePressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        block = self.block_at(event.pos())
        if block is not None:
            self.select_quietly(block.booking.id)
        self.context_requested.emit(event.globalPos())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and (self.cancel()):
            return
        if self.gesture is not None or not self._keys.press(event):
            super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        if self.gesture is not None:
            self.still.draw(painter, event.rect())
        else:
            self._paint_still(painter, QRectF(event.rect()))
        self._paint_moving(painter)

    def paint_all(self, painter: QPainter, height: int | None = None) -> None:
        """Paints the calendar from its first row down to `height`, for benchmarks. If `height` is None, paints only the
        viewport.
        """
        rect = QRectF(0, 0, self.viewport().width(), height or self.viewport().height())
        self._paint_still(painter, rect, scroll=0 if height else None)

    def _paint_still(self, painter: QPainter, rect: QRectF, scroll: int | None = None) -> None:
        self._painter.paint(
            painter,
            self.picture,
            self.axis,
            rect,
            self.verticalScrollBar().value() if scroll is None else scroll,
            selected=self._selected,
            lifted=self._mouse.lifted,
            marked=self.cursor_.lanes if self.cursor_ is not None else range(0),
        )

    def _paint_moving(self, painter: QPainter) -> None:
        ghosts = list(fit_overlays(self.fits, self.picture.lanes, self.chosen_fit)) if self.fits else []
        if self._ghost is not None:
            ghosts.append(self._ghost)
        shows_cursor = self.cursor_ is not None and self.hasFocus() and self.gesture is None
        if not ghosts and not shows_cursor:
            return
        painter.save()
        painter.setClipRect(self.viewport().rect().adjusted(M.lane_header, M.days_header, 0, 0))
        painter.translate(M.lane_header, M.days_header - self.verticalScrollBar().value())
        paint_overlays(painter, ghosts, self.axis)
        if shows_cursor and self.cursor_ is not None:
            gpus = self.gpus_of(self.cursor_)
            paint_cursor(painter, self.boxes(gpus, self.cursor_.start, self.cursor_.end), self.axis)
        painter.restore()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._mouse.cancel()  # A new width moves the days, so the pointer is now over a different time.
        self.still.forget()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.still.forget()
        self.tip.hide()
        self.viewport().update()

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            text = self.tooltip_at(event.pos())
            QToolTip.showText(event.globalPos(), text, self.viewport())
            return True
        if event.type() == QEvent.Type.Leave:
            self._mouse.leave()
        return super().viewportEvent(event)

    def tooltip_at(self, position: QPoint) -> str:
        """Returns the tool tip at a position, or "" if there is none.

        The tool tip shows the time zone, the details of a booking, who uses a GPU without a booking, or a host's name.
        """
        if position.y() < M.days_header:
            return self.tr("Times are in {zone}").format(zone=self.axis.zone)
        block = self.block_at(position)
        if self.gesture is not None:
            return ""
        if block is None:
            if (tip := self._use_tooltip(position) or self._host_tooltip(position)) or position.x() < M.lane_header:
                return tip
            block = labelled_block_at(self.picture, self.axis, self.in_lanes(position))
        return self.booking_tooltip(block.booking) if block is not None else ""

    def _host_tooltip(self, position: QPoint) -> str:
        """Returns the full name of the host whose heading is at the position, with the note about the host. Returns ""
        if the position is not on the heading of a host.
        """
        row = self.row_at(position)
        if row is None or row.is_lane or position.x() >= M.lane_header:
            return ""
        return " · ".join(filter(None, (row.host, self.picture.host_notes.get(row.host, ""))))

    def _use_tooltip(self, position: QPoint) -> str:
        """Returns a text that says who uses a GPU without a booking. Returns "" if the position is neither on the
        heading of such a GPU nor on the mark of its use.
        """
        row = self.row_at(position)
        use = self.picture.used_now.get(row.slots[0].id) if row is not None and row.is_lane else None
        if row is None or use is None:
            return ""
        at = self.in_lanes(position)
        boxes = unbooked_boxes(self.picture, self.axis, row.slots[0].id)
        if position.x() >= M.lane_header and not any(box.adjusted(-3, -3, 3, 3).contains(at) for box in boxes):
            return ""
        return use_tooltip(row.slots[0], use, self.picture, self.axis.zone)

    def booking_tooltip(self, booking: Booking) -> str:
        """Returns the details of a booking, with the time zone."""
        return booking_tooltip(booking, self.picture, self.axis.zone)

    def block_at(self, position: QPoint) -> Block | None:
        """Returns the block at a viewport position."""
        if position.x() < M.lane_header or position.y() < M.days_header:
            return None
        return block_at(self.picture, self.axis, self.in_lanes(position))

    def select_quietly(self, booking_id: str) -> None:
        """Selects a booking without scrolling to it."""
        if booking_id != self._selected:
            self._selected = booking_id
            self.selected.emit(booking_id)
            self._refresh()

    def _describe(self) -> None:
        cursor = self.cursor_
        if cursor is not None:
            block = self.block_of(cursor)
            self.setAccessibleDescription(
                cursor_description(cursor, self.gpus_of(cursor), block, self.picture, self.axis.zone)
            )

    def _theme_changed(self) -> None:
        self._painter.forget()
        self._refresh()

    def _refresh(self) -> None:
        self.still.forget()
        self.viewport().update()

    def _refresh_rows(self, rows: Sequence[tuple[int, int]]) -> None:
        if not rows:
            return
        self.still.forget()
        down = M.days_header - self.verticalScrollBar().value()
        for top, bottom in rows:
            self.viewport().update(0, top + down - 1, self.viewport().width(), bottom - top + 2)
