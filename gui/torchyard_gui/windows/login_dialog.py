"""Dialog that asks for a passphrase, a password or a one-time code for a login. The window stays usable meanwhile."""

from __future__ import annotations

import shiboken6
from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QApplication, QDialog, QLineEdit, QWidget

from torchyard_core.fleet.credential_prompts import CredentialKind, CredentialPrompt
from torchyard_gui.bridge.login_questions import LoginQuestions, WaitingQuestion
from torchyard_gui.widgets import Card, NoticeBar, SectionLabel, label
from torchyard_gui.widgets.dialogs import DialogButtons
from torchyard_gui.widgets.layouts import vbox

WIDTH = 460


class LoginDialog(QDialog):
    """Dialog with one question. Enter answers the question. Esc, or closing the dialog, leaves the question
    unanswered.
    """

    def __init__(self, waiting: WaitingQuestion, parent: QWidget | None = None):
        super().__init__(parent)
        self.setModal(False)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumWidth(WIDTH)
        self.waiting = waiting
        question = waiting.question
        self.setWindowTitle(self._title(question))
        self.complaint = NoticeBar()
        self.server_message = Card()
        self.instructions = label(question.instructions, wrap=True)
        self.server_message.body.addWidget(SectionLabel(self.tr("{host} says").format(host=question.host)))
        self.server_message.body.addWidget(self.instructions)
        self.server_message.setVisible(bool(question.instructions))
        self.prompt = label(self._prompt(question), role="strong", wrap=True)
        self.field = QLineEdit()
        if question.hidden:
            self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setAccessibleName(f"{self.windowTitle()}, {question.about}: {self.prompt.text()}")
        self.prompt.setBuddy(self.field)
        buttons = DialogButtons(self, self.tr("Log in"))
        self.log_in, self.cancel = buttons.agree, buttons.cancel
        head = vbox(
            label(self.windowTitle(), role="title", wrap=True),
            label(question.about, ink="2", wrap=True),
            margins=(20, 0, 20, 0),
            spacing=2,
        )
        note = label(self._note(question), role="small", ink="3", wrap=True)
        parts = self.server_message, self.prompt, self.field, note, 8, None, buttons
        body = vbox(*parts, margins=(20, 0, 20, 0), spacing=6)
        vbox(head, self.complaint, body, parent=self, margins=(0, 18, 0, 16), spacing=12)
        if question.complaint:
            self.complaint.show_notice("fail", question.complaint, closable=False)
        self.log_in.setDefault(True)
        self.field.setFocus()

    def done(self, result: int) -> None:
        # The text must be read before the dialog is deleted.
        self.waiting.answer(self.field.text() if result == QDialog.DialogCode.Accepted else None)
        self.field.clear()
        super().done(result)

    def _title(self, question: CredentialPrompt) -> str:
        titles = {
            CredentialKind.PASSPHRASE: self.tr("{host} needs a locked private key"),
            CredentialKind.PASSWORD: self.tr("{host} asks for a password"),
            CredentialKind.ANSWER: self.tr("{host} asks a question at login"),
        }
        return titles[question.kind].format(host=question.host)

    def _prompt(self, question: CredentialPrompt) -> str:
        """Returns the window's own text for a passphrase or password, otherwise the server's prompt."""
        words = {CredentialKind.PASSPHRASE: self.tr("Passphrase"), CredentialKind.PASSWORD: self.tr("Password")}
        return words.get(question.kind, question.prompt)

    def _note(self, question: CredentialPrompt) -> str:
        kept = self.tr("Kept in memory until the window is closed, and never stored.")
        if question.kind is CredentialKind.PASSPHRASE:
            return self.tr("{kept} Leave it empty to continue without this key.").format(kept=kept)
        return kept


class LoginAsker(QObject):
    """Shows the questions of logins in dialogs over the active window, one at a time."""

    def __init__(self, window: QWidget, questions: LoginQuestions):
        super().__init__(window)
        self._window = window
        self.dialog: LoginDialog | None = None
        """The dialog that was shown last; None before the first one and after a withdrawn question."""
        questions.asked.connect(self._ask)
        questions.withdrawn.connect(self._withdraw)

    def _ask(self, waiting: WaitingQuestion) -> None:
        if waiting.is_answered:
            return  # The question was withdrawn before it could be shown.
        # A modal dialog blocks all windows except its children, so an open modal dialog must be the parent of the login
        # dialog.
        dialog = LoginDialog(waiting, QApplication.activeModalWidget() or self._window)
        # If the parent is deleted, the login dialog is deleted with it, so the question must be asked again.
        dialog.destroyed.connect(lambda: self._ask_again(waiting))
        self.dialog = dialog
        dialog.show()
        dialog.raise_()
        dialog.activateWindow()

    def _ask_again(self, waiting: WaitingQuestion) -> None:
        if shiboken6.isValid(self):
            self._ask(waiting)

    def _withdraw(self) -> None:
        dialog, self.dialog = self.dialog, None
        if dialog is not None and shiboken6.isValid(dialog) and not dialog.waiting.is_answered:
            dialog.reject()
