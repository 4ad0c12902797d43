"""A short message near the lower edge of a widget, which disappears after a few seconds."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QWidget

from torchyard_gui.widgets.layouts import hbox
from torchyard_gui.widgets.screen_reader import announce

SHOWN_FOR_MS = 4000
ACTION_SHOWN_FOR_MS = 10_000
"""Milliseconds for which a toast with a button is shown: long enough for the user to read it and reach the button."""
WIDEST = 560
"""Maximum width of the text in pixels."""
PAD = 14


class Toast(QFrame):
    """A message over a widget. A new message replaces the last one and is announced to screen readers.

    A toast must not be used for messages that need an answer. If a message has a button, the button's action must also
    have a shortcut or a menu entry, because a toast never gets the focus.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("toast", True)
        self.label = QLabel(self, textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self.button = QPushButton(self, flat=True)
        self.button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.button.clicked.connect(self._run_action)
        self._action: QAction | None = None
        hbox(self.label, self.button, parent=self, margins=(PAD, 8, PAD, 8))
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.hide)
        self._around = parent
        parent.installEventFilter(self)
        self.hide()

    def say(self, text: str, for_ms: int | None = None, *, urgent: bool = False, action: QAction | None = None) -> None:
        """Shows `text`, with a button if `action` is given.

        By default, the text is shown for SHOWN_FOR_MS milliseconds, or for ACTION_SHOWN_FOR_MS with a button.

        `urgent` is set for refusals and failures, which may interrupt a screen reader's speech.
        """
        self.label.setText(text)
        self.setAccessibleName(text)
        self._action = action
        # If a toast has no button, clicks on it reach the widget below.
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents, action is None)
        self.button.setVisible(action is not None)
        if action is not None:
            self.button.setText(action.text().partition(":")[0])
            self.button.setToolTip(action.toolTip())
        self._place()
        self.show()
        self.raise_()
        self._timer.start(for_ms or (SHOWN_FOR_MS if action is None else ACTION_SHOWN_FOR_MS))
        announce(self._around, text, urgent=urgent)

    def _run_action(self) -> None:
        self.hide()
        if self._action is not None:
            self._action.trigger()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and self.isVisible():
            self._place()
        elif event.type() == QEvent.Type.Close:
            self._timer.stop()
        return False

    def _place(self) -> None:
        around = self._around.rect()
        # The label is wide enough to show its text in one line, up to a maximum width. Longer text is wrapped.
        words = self.label.fontMetrics().horizontalAdvance(self.label.text()) + 2
        self.label.setFixedWidth(min(words, WIDEST, around.width() - 2 * PAD))
        self.adjustSize()
        self.move((around.width() - self.width()) // 2, around.height() - self.height() - 48)
