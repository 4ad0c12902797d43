"""A question of a launch, with buttons that name the actions."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from torchyard_core.launch.confirmations import Confirmation
from torchyard_gui.widgets import StateMark, label
from torchyard_gui.widgets.dialogs import yes_to
from torchyard_gui.widgets.next_steps import advice_text, as_sentence


class QuestionBlock(QFrame):
    """Hidden until `ask`. Enter means no unless the focus is on yes."""

    answered = Signal(bool)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("notice", "warn")
        self.sentence = label(wrap=True)
        self.advice = label(role="small", ink="2", wrap=True)
        self.yes = QPushButton(self.tr("Send them"))
        self.no = QPushButton(self.tr("Do not launch"))
        self.question = label(role="strong", wrap=True)
        answers = QHBoxLayout()
        answers.setSpacing(8)
        answers.addWidget(self.question, 1)
        answers.addWidget(self.yes)
        answers.addWidget(self.no)
        text = QVBoxLayout()
        text.setSpacing(6)
        text.addWidget(self.sentence)
        text.addWidget(self.advice)
        text.addSpacing(2)
        text.addLayout(answers)
        mark = QVBoxLayout()
        mark.addWidget(StateMark("warning"))
        mark.addStretch()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(20, 10, 20, 12)
        layout.setSpacing(10)
        layout.addLayout(mark)
        layout.addLayout(text, 1)
        for button, yes in ((self.yes, True), (self.no, False)):
            button.setAutoDefault(True)
            button.clicked.connect(lambda checked=False, yes=yes: self._answer(yes))
        self.hide()

    def ask(self, question: Confirmation) -> None:
        """Shows a question and takes the focus."""
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
