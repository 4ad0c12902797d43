"""A panel at one side of a page: in its layout, or in a narrow window behind a strip, as a drawer over the page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QBoxLayout, QWidget

from torchyard_gui.theme.tokens import METRICS as M


class SideDrawer(QObject):
    """Keeps one panel and its strip where the window's width wants them. Esc in the panel leaves it for the page, and
    shuts an open drawer."""

    def __init__(self, panel: QWidget, page: QWidget, side: Literal["left", "right"]) -> None:
        super().__init__(page)
        self.is_narrow = False
        self._panel = panel
        self._page = page
        self._side = side
        page.installEventFilter(self)
        panel.installEventFilter(self)

    @cached_property
    def strip(self) -> QWidget:
        """What stands for the panel where it is shut; made in the first window that is too narrow for the panel."""
        # For the Tab key it stands where the panel does, not after all that was there before it.
        first = next(stop for stop in _stops_after(self._panel) if self._panel.isAncestorOf(stop))
        *_, before = _stops_after(first)
        made = self._make_strip()
        made.hide()
        for stop in [stop for stop in _stops_after(made) if made.isAncestorOf(stop)]:
            QWidget.setTabOrder(before, stop)
            before = stop
        return made

    def _make_strip(self) -> QWidget:
        raise NotImplementedError

    @property
    def pane(self) -> QWidget:
        """What F6 goes to."""
        return self.strip if self.is_narrow and not self._panel.isVisible() else self._panel

    @property
    def is_open(self) -> bool:
        """Whether there is a drawer over the page."""
        return self.is_narrow and self._panel.isVisible()

    def reveal(self) -> None:
        """Shows the panel where it is shut; the keyboard goes where the caller puts it."""
        if self.is_narrow and not self._panel.isVisible():
            self._panel.show()
            self._panel.raise_()
            self._lay_drawer()
            self._turned()

    def shut(self) -> None:
        """Only the strip is left; with room for the panel, nothing happens."""
        if self.is_open:
            focus = self._panel.window().focusWidget()
            if focus is not None and self._panel.isAncestorOf(focus):
                self._page.setFocus(Qt.FocusReason.OtherFocusReason)  # else Qt would give it to what comes next
            self._panel.hide()
            self._turned()

    def fit(self) -> None:
        """Strip or panel, as the window is wide."""
        narrow = self._page.window().width() < M.narrow_below
        if narrow != self.is_narrow:
            self.is_narrow = narrow
            layout = self._page.layout()
            assert isinstance(layout, QBoxLayout)
            here, gone = (self.strip, self._panel) if narrow else (self._panel, self.strip)
            layout.removeWidget(gone)
            layout.insertWidget(0 if self._side == "left" else layout.count(), here)
            self._panel.setProperty("drawer", narrow)
            self._panel.style().unpolish(self._panel)
            self._panel.style().polish(self._panel)
            self._panel.setVisible(not narrow)
            self.strip.setVisible(narrow)
            self._turned()
        if narrow:
            self._lay_drawer()

    def _turned(self) -> None:
        """The drawer was opened or shut."""

    def _lay_drawer(self) -> None:
        width = self._panel.width()
        x = M.palette_strip if self._side == "left" else self._page.width() - M.palette_strip - width
        self._panel.setGeometry(x, 0, width, self._page.height())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._page and event.type() in (QEvent.Type.Resize, QEvent.Type.Show):
            self.fit()
        elif watched is self._panel and _is_escape(event):
            self.shut()
            self._page.setFocus(Qt.FocusReason.OtherFocusReason)
            return True
        return super().eventFilter(watched, event)


def _stops_after(start: QWidget) -> Iterator[QWidget]:
    """Where the Tab key stops in a widget's window from there on, once around."""
    widget = start.nextInFocusChain()
    while widget is not None and widget is not start:
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget
        widget = widget.nextInFocusChain()


def _is_escape(event: QEvent) -> bool:
    return isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and event.key() == Qt.Key.Key_Escape
