"""Shows one or several logs. Only the pages with visible lines are loaded, so even long logs open immediately."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint, QRect, Qt, QTimer, Signal
from PySide6.QtGui import (
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QAbstractSlider, QWidget

from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.runs.logs.log_loader import LogLoader
from torchyard_gui.runs.logs.log_merge import END, TOP, MergedLog, MissingPages, Place, PlacedLine
from torchyard_gui.runs.logs.log_painting import GAP, line_height, paint_lines, paint_names, width_of
from torchyard_gui.theme.theme import theme

WHEEL_LINES = 3
MARGIN = 16
MOST_COPIED = 20_000
"""Maximum number of lines that are copied together."""
SCROLL_UNITS = 1_000_000


class LogView(QAbstractScrollArea):
    """A view of logs that scrolls to new lines while it follows them.

    The view stops following when the user scrolls up, and follows again when the user scrolls to the end.
    """

    following_changed = Signal(bool)
    search_ended = Signal(bool)
    """Emitted when a search has ended, with True if it found a match."""
    matches_counted = Signal()
    """Emitted when the matches have been counted, so that `match_number` and `match_count` are known."""
    problem_changed = Signal(str)
    """Emitted with the current problem, or "" if there is none."""
    last_line_changed = Signal(str)
    log_wanted = Signal(str)
    """Emitted with the name of a log that should be shown alone."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._reading: LogLoader | None = None
        self._log = MergedLog()
        self._top: Place = TOP
        self._lines: list[PlacedLine] = []
        self._following = True
        self._widest = 0
        self._hit = ""
        self._selected: tuple[Place, Place] | None = None
        """The selected lines, as the places of the anchor and of the other end."""
        self._later: Callable[[], None] | None = None
        """A scroll operation to repeat once a missing page is loaded."""
        self._soon = QTimer(self, singleShot=True)
        self._soon.timeout.connect(self._go_on)
        self.setFrameShape(self.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(self.tr("Log"))
        self.viewport().setCursor(Qt.CursorShape.IBeamCursor)
        self.verticalScrollBar().setSingleStep(1)
        self.verticalScrollBar().actionTriggered.connect(self._scrolled)
        self.horizontalScrollBar().valueChanged.connect(self.viewport().update)
        theme().changed.connect(self.viewport().update)

    def set_feed(self, feed: LogFeed | None) -> None:
        """Shows a single log from its end. The caller must close the feed."""
        self.set_feeds([] if feed is None else [feed], [] if feed is None else [feed.replica])

    def set_feeds(self, feeds: Sequence[LogFeed], names: Sequence[str]) -> None:
        """Shows logs from their end. With several logs, each line begins with the name of its log."""
        if self._reading is not None:
            self._reading.close()
            self._reading.deleteLater()
        self._reading = reading = LogLoader(feeds, names, self) if feeds else None
        self._log = reading.log if reading is not None else MergedLog()
        self._top, self._lines, self._selected, self._widest = TOP, [], None, 0
        self._later = None
        self.horizontalScrollBar().setValue(0)
        if reading is not None:
            reading.grown.connect(self._grown)
            reading.filled.connect(self._filled)
            reading.ended_changed.connect(self._lay_out)
            reading.problem_changed.connect(self.problem_changed)
            reading.counted.connect(self.matches_counted)
        self.set_following(True)
        self.problem_changed.emit("")
        self._lay_out()

    @property
    def is_following(self) -> bool:
        return self._following

    def set_following(self, on: bool) -> None:
        """Sets whether the view scrolls to new lines."""
        if on != self._following:
            self._following = on
            self.following_changed.emit(on)
        if on:
            self._later = None
            self._lay_out()

    @property
    def shown_lines(self) -> list[str]:
        return [line.line.text for line in self._lines]

    @property
    def shown_names(self) -> list[str]:
        """Names of the logs to which the visible lines belong."""
        return [line.name for line in self._lines]

    def search(self, text: str, *, backwards: bool) -> None:
        """Searches from the selected line or, if no line is selected, forwards from the first visible line or backwards
        from the end.

        `search_ended` is emitted with the result. An empty string removes the highlighting of matches.
        """
        self.cancel_search()
        self._hit = text
        self.viewport().update()
        if not text or self._reading is None:
            if self._reading is not None:
                self._reading.forget_matches()
            return
        if self._selected is not None:
            begin = self._selected[0] if backwards else self._after(self._selected[0])
        else:
            begin = END if backwards else self._top
        self._reading.search(text, begin, backwards=backwards, done=self._searched)

    @property
    def match_count(self) -> tuple[int, bool] | None:
        """The number of lines with matches, and whether all lines were counted.

        None while the matches are being counted, or if there is no search.
        """
        matches = self._reading.matches if self._reading is not None else None
        return None if matches is None or matches.is_counting else (matches.total, matches.is_complete)

    @property
    def match_number(self) -> int:
        """The number of the match in the selected line, counted from 1. 0 if no line is selected."""
        matches = self._reading.matches if self._reading is not None else None
        return 0 if matches is None or self._selected is None else matches.number_of(self._selected[0])

    def cancel_search(self) -> None:
        if self._reading is not None:
            self._reading.cancel_search()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        page = max(1, self._rows() - 1)
        steps = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_PageUp: -page, Qt.Key.Key_PageDown: page}
        key = Qt.Key(event.key())
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        elif key in steps:
            self._step(steps[key])
        elif key == Qt.Key.Key_Home:
            self._go(TOP)
        elif key == Qt.Key.Key_End:
            self.set_following(True)
        elif key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            bar = self.horizontalScrollBar()
            bar.setValue(bar.value() + (40 if key == Qt.Key.Key_Right else -40))
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._selected is not None:
            self._want(self._selected[0])
        else:
            super().keyPressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        across, down = event.angleDelta().x(), event.angleDelta().y()
        if across or event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            bar = self.horizontalScrollBar()
            bar.setValue(bar.value() - (across or down))
        elif down:
            self._step(-round(down / 120 * WHEEL_LINES) or (-1 if down > 0 else 1))
        event.accept()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        line = self._line_at(event.position().toPoint())
        if event.button() == Qt.MouseButton.LeftButton:
            if line is None:
                self._selected = None
            elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier and self._selected is not None:
                self._selected = (self._selected[0], line.place)
            else:
                self._selected = (line.place, line.place)
            self.viewport().update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        line = self._line_at(event.position().toPoint())
        if event.buttons() & Qt.MouseButton.LeftButton and line is not None and self._selected is not None:
            self._selected = (self._selected[0], line.place)
            self.viewport().update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        line = self._line_at(event.position().toPoint())
        if line is not None:
            self._want(line.place)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        event.accept()

    def copy(self) -> None:
        """Copies the selected lines, at most MOST_COPIED, to the clipboard.

        If a page of these lines is not loaded, only the visible ones are copied.
        """
        if self._selected is None:
            return
        low, high = sorted(self._selected)
        try:
            lines = self._log.lines(low, MOST_COPIED)
        except MissingPages:
            lines = self._lines
        chosen = [line for line in lines if low <= line.place <= high]
        names = [f"{line.name}: " if len(self._log) > 1 else "" for line in chosen]
        text = "\n".join(name + line.line.text for name, line in zip(names, chosen, strict=True))
        QGuiApplication.clipboard().setText(text)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._lay_out()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        rect = self.viewport().rect()
        names = self._names_width()
        left = names + MARGIN - self.horizontalScrollBar().value()
        low, high = sorted(self._selected) if self._selected is not None else (END, TOP)
        paint_lines(painter, rect, self._lines, left, self._hit, (low, high))
        if names:
            paint_names(painter, QRect(0, 0, names, rect.height()), self._lines, MARGIN)
        if not self._lines and self._reading is not None:
            empty = self.tr("No output") if self._reading.ended else self.tr("No output yet")
            painter.setFont(theme().font("body"))
            painter.setPen(theme().pen("text3"))
            painter.drawText(rect, Qt.AlignmentFlag.AlignCenter, "…" if self._log.size else empty)

    def _names_width(self) -> int:
        """Returns the width of the name column, which is 0 for a single log."""
        return MARGIN + GAP + max(map(width_of, self._log.names)) if len(self._log) > 1 else 0

    def _want(self, place: Place) -> None:
        if len(self._log) > 1:
            self.log_wanted.emit(self._log.names[place[1]])

    def _rows(self) -> int:
        return max(1, int(self.viewport().height() / line_height()))

    def _line_at(self, point: QPoint) -> PlacedLine | None:
        row = int(point.y() / line_height())
        return self._lines[row] if 0 <= row < len(self._lines) else None

    def _after(self, place: Place) -> Place:
        try:
            lines = self._log.lines(place, 1)
        except MissingPages:
            lines = []
        return lines[0].after if lines else place

    def _go_on(self) -> None:
        later, self._later = self._later, None
        if later is not None:
            later()
        else:
            self._lay_out()

    def _lay_out(self) -> None:
        """Computes the visible lines. If pages are missing, requests these pages; the lines are then computed once the
        pages have arrived.
        """
        if self._reading is None:
            self._lines = []
            self.viewport().update()
            return
        rows = self._rows()
        try:
            last = self._log.last_page(rows)
            if self._following or self._top > last:
                self._top = last
        except MissingPages as missing:
            self._reading.ask(missing.pieces)
            if self._following:
                return
        try:
            # One extra line is requested, because the last line may be only partly visible.
            self._lines = self._log.lines(self._top, rows + 1)
        except MissingPages as missing:
            self._reading.ask(missing.pieces)
            return
        self._show_bars()
        self.viewport().update()
        if self._following and self._lines:
            last_line = self._lines[-1]
            name = f"{last_line.name}  " if len(self._log) > 1 else ""
            self.last_line_changed.emit(name + last_line.line.text)

    def _show_bars(self) -> None:
        shown = sum(line.line.end - line.line.begin for line in self._lines)
        bar = self.verticalScrollBar()
        fits = shown >= self._log.size
        page = min(SCROLL_UNITS, max(1, round(shown / max(1, self._log.size) * SCROLL_UNITS)))
        bar.blockSignals(True)
        bar.setPageStep(page)
        bar.setRange(0, 0 if fits else SCROLL_UNITS - page)
        bar.setValue(bar.maximum() if self._following else round(self._log.share(self._top) * SCROLL_UNITS))
        bar.blockSignals(False)
        self._widest = max([self._widest, *(width_of(line.line.text) for line in self._lines)])
        across = self.horizontalScrollBar()
        across.setPageStep(self.viewport().width())
        across.setRange(0, max(0, self._widest + self._names_width() + 2 * MARGIN - self.viewport().width()))

    def _step(self, lines: int) -> None:
        def step() -> None:
            if lines < 0:
                self._go(self._log.back(self._top, -lines))
                return
            found = self._log.lines(self._top, lines + 1)
            last = self._log.last_page(self._rows())
            below = found[lines].place if len(found) > lines else last
            self._go(below) if below < last else self.set_following(True)

        self._when_here(step)

    def _go(self, top: Place) -> None:
        self._top = top
        if self._following:
            self._following = False
            self.following_changed.emit(False)
        self._lay_out()

    def _when_here(self, go: Callable[[], None]) -> None:
        """Scrolls by calling `go`. If pages are missing, requests them, and calls `go` again when they are loaded."""
        try:
            go()
        except MissingPages as missing:
            self._later = lambda: self._when_here(go)
            if self._reading is not None:
                self._reading.ask(missing.pieces)

    def _scrolled(self, action: int) -> None:
        bar = self.verticalScrollBar()
        wanted = bar.sliderPosition()
        kind = QAbstractSlider.SliderAction(action)
        pages = {QAbstractSlider.SliderAction.SliderPageStepAdd: 1, QAbstractSlider.SliderAction.SliderPageStepSub: -1}
        if kind in pages:
            bar.setSliderPosition(bar.value())
            self._step(pages[kind] * max(1, self._rows() - 1))
        elif kind == QAbstractSlider.SliderAction.SliderMove:
            if wanted >= bar.maximum():
                self.set_following(True)
                return
            self._when_here(lambda: self._go(self._log.near(wanted / SCROLL_UNITS)))

    def _grown(self) -> None:
        if not self._soon.isActive():
            self._soon.start(0)

    def _filled(self) -> None:
        self._soon.start(0)

    def _searched(self, place: Place | None) -> None:
        if place is None:
            self.search_ended.emit(False)
        else:
            self._when_here(lambda: self._show_hit(place))

    def _show_hit(self, place: Place) -> None:
        """Selects the line of a match and scrolls to it."""
        line = self._log.line_with(place[1], place[2])
        top = self._log.back(line, self._rows() // 2)
        self._selected = (line, line)
        self._go(top)
        self.search_ended.emit(True)
