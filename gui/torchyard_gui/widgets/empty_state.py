"""Placeholders for empty pages and lists."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QAbstractItemView, QLabel, QPushButton, QWidget

from torchyard_gui.theme.icons import pixmap
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.buttons import Look, push_button
from torchyard_gui.widgets.layouts import hbox, vbox
from torchyard_gui.widgets.text_labels import label

WIDTH = 400
"""Maximum width of the sentence in pixels, because longer lines are hard to read."""


class EmptyState(QWidget):
    """Placeholder with a title, a sentence and buttons. The first button is the primary one."""

    def __init__(self, title: str, sentence: str, *actions: QAction, icon_name: str = "") -> None:
        super().__init__()
        self._icon_name = icon_name
        self._picture = QLabel(self, alignment=Qt.AlignmentFlag.AlignCenter)
        self._picture.setVisible(bool(icon_name))
        self.title = label(title, role="title")
        self.title.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.sentence = label(sentence, ink="2", wrap=True)
        self.sentence.setAlignment(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)
        self.sentence.setMaximumWidth(WIDTH)
        self.buttons = [_button(action, first=number == 0) for number, action in enumerate(actions)]

        across = hbox((None, 1), (self.sentence, 1000), (None, 1))
        row = hbox(None, *self.buttons, None, spacing=8)
        vbox((None, 2), self._picture, 6, self.title, across, 8, row, (None, 3), parent=self, spacing=6)
        theme().changed.connect(self._draw)
        self._draw()

    def set_texts(self, title: str, sentence: str) -> None:
        self.title.setText(title)
        self.sentence.setText(sentence)

    def _draw(self) -> None:
        if self._icon_name:
            self._picture.setPixmap(pixmap(self._icon_name, 40, "line", self.devicePixelRatioF()))


def _button(action: QAction, *, first: bool) -> QPushButton:
    look: Look = "primary" if first else ""
    button = push_button(action.text().replace("&", ""), action.trigger, look, action.toolTip())
    button.setEnabled(action.isEnabled())
    return button


MARGIN = 16
HEIGHT = 88


class EmptyListMessage(QLabel):
    """Message over a view, which is shown while the view has no rows."""

    def __init__(self, view: QAbstractItemView, message: Callable[[], str]) -> None:
        """Creates the message over `view`.

        Args:
            message: Returns the message, or "" if there is none. `look` must be called whenever the result may have
                changed.
        """
        super().__init__(view.viewport())
        self._view = view
        self._message = message
        self.setProperty("ink", "2")
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        model = view.model()
        for changed in (model.modelReset, model.rowsInserted, model.rowsRemoved, model.layoutChanged):
            changed.connect(self.look)
        view.viewport().installEventFilter(self)
        self.look()

    def look(self) -> None:
        """Updates the text and shows or hides the message."""
        message = self._message() if self._view.model().rowCount() == 0 else ""
        self.setText(message)
        self.setVisible(bool(message))
        self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._place()
        return False

    def _place(self) -> None:
        around = self._view.viewport().rect().adjusted(MARGIN, MARGIN, -MARGIN, -MARGIN)
        self.setGeometry(around.x(), around.y(), around.width(), min(around.height(), HEIGHT))
