"""A bar that shows a notice, such as a problem, with buttons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import NextStep
from torchyard_gui.theme.icons import paint_state, pixmap
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.layouts import hbox, remove_widgets
from torchyard_gui.widgets.next_steps import error_text, quoted, step_button, with_buttons
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import set_style_property

Kind = Literal["info", "warn", "fail"]


class NoticeBar(QFrame):
    """Bar that is hidden until `show_notice` is called.

    `action_triggered` is emitted with the index of the pressed action. A new text is announced to screen readers when
    it becomes visible, unless `is_known` is set.
    """

    action_triggered = Signal(int)
    closed = Signal()

    def __init__(self, parent: QWidget | None = None, *, margin: int = 16) -> None:
        super().__init__(parent)
        self.kind: Kind = "info"
        self._announced = ""
        """The text that needs no announcement, because it was announced before or the user knows it."""
        self._mark = _Mark(self)
        self.label = QLabel(self, textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self.label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._close = tool_button("close", self.tr("Dismiss"), self._dismiss)
        self.buttons: list[QPushButton] = []
        self._shown: tuple[tuple[str, ...], tuple[NextStep, ...]] = ((), ())
        self._layout = hbox(
            self._mark, (self.label, 1), self._close, parent=self, margins=(margin, 6, margin - 8, 6), spacing=10
        )
        self.hide()

    @property
    def text(self) -> str:
        return self.label.text()

    def show_error(
        self,
        error: TorchyardError,
        *actions: str,
        kind: Kind = "fail",
        text: str = "",
        closable: bool = True,
        is_known: bool = False,
    ) -> None:
        """Shows an error, with buttons for `actions` and for its next steps. `text` replaces the text of the error."""
        text = text or error_text(error, has_buttons=True)
        self.show_notice(kind, text, *actions, closable=closable, is_known=is_known, steps=error.next)

    def show_notice(
        self,
        kind: Kind,
        text: str,
        *actions: str,
        closable: bool = True,
        is_known: bool = False,
        steps: Iterable[NextStep] = (),
    ) -> None:
        """Shows a notice with a button for each of `actions` and `steps`. The previous notice is replaced.

        Args:
            is_known: Whether the user already knows the text, so that it is not announced to screen readers.
        """
        text = quoted(text)
        self.kind = kind
        self._mark.kind = kind
        set_style_property(self, "notice", kind)
        if is_known:
            self.reword(text)
        self.label.setText(text)
        self.setAccessibleName(text)
        shown = actions, tuple(with_buttons(steps))
        if self._shown != shown:
            self._shown = shown
            self._put_buttons(*shown)  # If the buttons have not changed, they are kept, and so is the focus.
        self._close.setVisible(closable)
        self._mark.update()
        self.show()
        self._announce()

    def reword(self, text: str) -> None:
        """Changes the text without an announcement to screen readers."""
        self._announced = text
        self.label.setText(text)
        self.setAccessibleName(text)

    def clear(self) -> None:
        """Hides the bar."""
        self._announced = ""
        self.hide()
        self.label.clear()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._announce()

    def _announce(self) -> None:
        if self.isVisible() and self.text != self._announced:
            self._announced = self.text
            announce(self, self.text, urgent=self.kind != "info")

    def _put_buttons(self, actions: Sequence[str], steps: Sequence[NextStep]) -> None:
        remove_widgets(self._layout, self.buttons)
        self.buttons = [self._button(number, words) for number, words in enumerate(actions)]
        self.buttons += map(step_button, steps)
        for number, button in enumerate(self.buttons):
            self._layout.insertWidget(2 + number, button)
            button.show()

    def _button(self, number: int, text: str) -> QPushButton:
        button = QPushButton(text)
        button.clicked.connect(lambda: self.action_triggered.emit(number))
        return button

    def _dismiss(self) -> None:
        self.clear()
        self.closed.emit()


class _Mark(QWidget):
    """A mark whose shape shows the kind of the notice, because colour alone would not be accessible."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.kind: Kind = "info"
        self.setFixedSize(16, 16)
        theme().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self.kind == "info":
            painter.drawPixmap(0, 0, pixmap("info", 16, "accent", self.devicePixelRatioF()))
        else:
            paint_state(painter, QRectF(0, 0, 16, 16), "warning" if self.kind == "warn" else "failed")
