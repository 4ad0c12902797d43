"""Input fields: search, numbers and choices."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QWheelEvent
from PySide6.QtWidgets import QButtonGroup, QComboBox, QFrame, QLineEdit, QSpinBox, QToolButton, QWidget

from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets.layouts import hbox


class SearchField(QLineEdit):
    """Search field with an icon and a clear button. Esc clears the field; an empty field passes Esc to its parent."""

    def __init__(self, placeholder: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setPlaceholderText(placeholder)
        self.setAccessibleName(placeholder.rstrip(" ….") or self.tr("Search"))
        self.setClearButtonEnabled(True)
        self.addAction(icon("search"), QLineEdit.ActionPosition.LeadingPosition)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
            return
        super().keyPressEvent(event)


MARGIN = 9
"""Text margin of spin boxes in pixels, equal to the padding of other fields. A style sheet cannot set this margin."""


class NumberField(QSpinBox):
    """Spin box with the style of the other fields."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.lineEdit().setTextMargins(MARGIN, 0, 0, 0)


class ChoiceBox(QComboBox):
    """A choice between (key, text) pairs in a drop-down list. The mouse wheel scrolls the surrounding form instead of
    changing the choice.
    """

    changed = Signal(str)
    """Emitted with the key that the user has chosen."""

    def __init__(self, choices: Sequence[tuple[str, str]], name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._keys = [key for key, _ in choices]
        self.addItems([text for _, text in choices])
        self.setAccessibleName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.activated.connect(lambda row: self.changed.emit(self._keys[row]))

    @property
    def value(self) -> str:
        """The key of the current choice."""
        return self._keys[self.currentIndex()]

    def set_value(self, key: str) -> None:
        """Sets the choice without emitting `changed`."""
        self.setCurrentIndex(self._keys.index(key))

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class Segmented(QFrame):
    """A choice between (key, text) pairs, shown as adjacent buttons. The arrow keys change the choice."""

    changed = Signal(str)

    def __init__(self, choices: Sequence[tuple[str, str]], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("segmented", True)
        self._keys = [key for key, _ in choices]
        self._buttons = QButtonGroup(self, exclusive=True)
        layout = hbox(parent=self, margins=(2, 2, 2, 2), spacing=2)
        for number, (_, text) in enumerate(choices):
            button = QToolButton(self)
            button.setProperty("segment", True)
            button.setText(text)
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            self._buttons.addButton(button, number)
            layout.addWidget(button)
        if choices:
            self._buttons.button(0).setChecked(True)
        self._buttons.idToggled.connect(self._toggled)

    @property
    def value(self) -> str:
        """The key of the current choice."""
        return self._keys[self._buttons.checkedId()]

    def set_value(self, key: str) -> None:
        """Sets the choice. Emits `changed` if the new choice is different."""
        self._buttons.button(self._keys.index(key)).setChecked(True)

    def button(self, key: str) -> QToolButton:
        """Returns the button of a choice, for example to disable it or to set its tool tip."""
        button = self._buttons.button(self._keys.index(key))
        assert isinstance(button, QToolButton)
        return button

    def _toggled(self, number: int, on: bool) -> None:
        if on:
            self.changed.emit(self._keys[number])
