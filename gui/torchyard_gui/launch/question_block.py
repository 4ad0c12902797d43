"""A question that a launch asks the user, with buttons named after their effects."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from torchyard_core.launch.confirmations import Confirmation
from torchyard_gui.widgets import StateMark, label
from torchyard_gui.widgets.dialogs import yes_to
from torchyard_gui.widgets.layouts import hbox, vbox
from torchyard_gui.widgets.next_steps import advice_text, as_sentence


class QuestionBlock(QFrame):
    """Widget that is hidden until `ask` is called. Enter declines unless the button that accepts has the focus."""

    answered = Signal(bool)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("notice", "warn")
        self.sentence = label(wrap=True)
        self.advice = label(role="small", ink="2", wrap=True)
        self.yes = QPushButton(self.tr("Send them"))
        self.no = QPushButton(self.tr("Do not launch"))
        self.question = label(role="strong", wrap=True)
        answers = hbox((self.question, 1), self.yes, self.no, spacing=8)
        text = vbox(self.sentence, self.advice, 2, answers, spacing=6)
        mark = vbox(StateMark("warning"), None)
        hbox(mark, (text, 1), parent=self, margins=(20, 10, 20, 12), spacing=10)
        for button, yes in ((self.yes, True), (self.no, False)):
            button.setAutoDefault(True)
            button.clicked.connect(lambda checked=False, yes=yes: self._answer(yes))
        self.hide()

    def ask(self, question: Confirmation) -> None:
        """Shows a question, and focuses the button that declines."""
        self.sentence.setText(as_sentence(question.message))
        self.question.setText(question.question)
        self.yes.setText(yes_to(question.accept))
        self.advice.setText(advice_text(question.advice))
        self.setAccessibleName(f"{self.sentence.text()} {self.question.text()}")
        self.show()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.no.setFocus()

    def _answer(self, yes: bool) -> None:
        self.hide()
        self.answered.emit(yes)
