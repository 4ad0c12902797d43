"""Confirmation dialogs, parts of other dialogs, and popups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFrame, QLineEdit, QPushButton, QSpinBox, QVBoxLayout, QWidget

from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.layouts import Part, vbox
from torchyard_gui.widgets.text_labels import label

WIDTH = 420
ALTERNATIVE = 2
"""Result code of a dialog that was closed with its third button, which is neither yes nor no."""


def yes_to(accept: str) -> str:
    """Returns the label of the button that answers yes when a launch asks a question.

    `accept` identifies the question.
    """
    if accept == "book":
        return QCoreApplication.translate("Question", "Book and launch")
    if accept == "launch":
        return QCoreApplication.translate("Question", "Launch")
    if accept == "secrets":
        return QCoreApplication.translate("Question", "Send the secrets")
    return QCoreApplication.translate("Question", "Send them")


class ConfirmationDialog(QDialog):
    """Dialog that is accepted if the user confirms. It is shown with `open()`, which blocks only its window.

    Esc declines. Enter presses the button that has the focus. Initially, the third button (the alternative) has the
    focus if there is one, otherwise the button that declines.
    """

    alternative_chosen = Signal()

    def __init__(
        self,
        question: str,
        sentence: str,
        yes: str,
        no: str,
        parent: QWidget | None = None,
        *,
        alternative: str = "",
        is_grave: bool = True,
    ):
        """Creates a dialog with two or three buttons.

        Args:
            alternative: Text of a third button, which is then the default.
            is_grave: Whether the confirmed action is destructive.
        """
        super().__init__(parent)
        self.setWindowTitle(question)
        self.setMinimumWidth(WIDTH)
        self.yes = QPushButton(yes)
        self.yes.setProperty("danger", is_grave)
        buttons = QDialogButtonBox()
        role = QDialogButtonBox.ButtonRole
        buttons.addButton(self.yes, role.DestructiveRole if alternative else role.AcceptRole)
        self.no = buttons.addButton(no, role.RejectRole)
        self.alternative: QPushButton | None = None
        if alternative:
            self.alternative = push_button(alternative, self._choose_alternative, "primary")
            buttons.addButton(self.alternative, role.AcceptRole)
        self.yes.clicked.connect(self.accept)
        self.no.clicked.connect(self.reject)
        self.rows = vbox(label(sentence, wrap=True), spacing=10)
        """Layout with the sentence, to which further content can be added."""
        dialog_layout(self, self.rows, 6, buttons, wrap_title=True)
        first = self.alternative or self.no
        first.setDefault(True)
        first.setFocus()

    def _choose_alternative(self) -> None:
        self.done(ALTERNATIVE)
        self.alternative_chosen.emit()


def ask_to_replace(
    path: Path, replace: Callable[[], object], another: Callable[[], object], parent: QWidget
) -> None:  # fmt: skip
    """Asks whether to replace a file. Calls `replace` if the user agrees. Calls `another` if the user wants to choose
    another name.
    """
    tr = partial(QCoreApplication.translate, "replacing")
    box = ConfirmationDialog(
        tr("Replace {file}?").format(file=path.name),
        tr("A file of that name exists in {folder}. Its contents will be lost.").format(folder=path.parent),
        tr("Replace"),
        tr("Another name …"),
        parent,
    )
    box.setObjectName("replace")
    box.accepted.connect(lambda: replace())
    box.rejected.connect(lambda: another())
    box.finished.connect(box.deleteLater)
    box.open()


def dialog_layout(
    dialog: QDialog, *parts: Part | tuple[Part, int], spacing: int = 10, wrap_title: bool = False
) -> QVBoxLayout:
    """Lays out parts from top to bottom, below a heading with the window title. The parts are given as for `vbox`."""
    heading = label(dialog.windowTitle(), role="title", wrap=wrap_title)
    return vbox(heading, *parts, parent=dialog, margins=(20, 18, 20, 16), spacing=spacing)


def grow_to_fit(dialog: QDialog) -> None:
    """Makes a dialog as tall as its parts require, because the size hint ignores the additional lines of wrapped
    text.
    """
    layouts = [layout for part in dialog.findChildren(QWidget) if (layout := part.layout()) is not None]
    for layout in reversed(layouts):  # Inner layouts are activated first, because they invalidate outer ones.
        layout.activate()
    whole = dialog.layout()
    assert whole is not None
    whole.activate()
    dialog.resize(dialog.width(), max(dialog.height(), whole.totalHeightForWidth(dialog.width())))


class DialogButtons(QDialogButtonBox):
    """The buttons that accept (`agree`) and reject (`cancel`) a dialog."""

    def __init__(self, dialog: QDialog, agree: str) -> None:
        super().__init__()
        self.agree = push_button(agree, look="primary")
        self.addButton(self.agree, self.ButtonRole.AcceptRole)
        self.cancel: QPushButton = self.addButton(self.tr("Cancel"), self.ButtonRole.RejectRole)
        self.accepted.connect(dialog.accept)
        self.rejected.connect(dialog.reject)


class Popup(QFrame):
    """Popup that Enter accepts, and that Esc or a click outside the popup closes."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setProperty("popup", True)

    def agree(self) -> None:
        """Accepts the popup. Called when the user presses Enter."""
        raise NotImplementedError

    def open_at(self, place: QPoint, field: QLineEdit | QSpinBox) -> None:
        """Opens the popup at a position on the screen, and selects the text of `field`."""
        self.move(place)
        self.show()
        field.setFocus(Qt.FocusReason.PopupFocusReason)
        field.selectAll()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.agree()
            return
        super().keyPressEvent(event)
