"""Questions that logins ask the user, for example for a password. The login's thread blocks until the window answers.

The window stores no answers; the login code caches them where appropriate.
"""

from __future__ import annotations

import threading

from PySide6.QtCore import QObject, Signal

from torchyard_core.fleet.credential_prompts import CredentialPrompt
from torchyard_gui.bridge.background_jobs import Jobs


class WaitingQuestion:
    """A login's question that waits for the user's answer. All methods are thread-safe."""

    def __init__(self, question: CredentialPrompt):
        self.question = question
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._answer: str | None = None

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    def answer(self, text: str | None) -> None:
        """Sets the answer, or None if the user declined. Only the first call has an effect."""
        with self._lock:
            if not self._answered.is_set():
                self._answer = text
                self._answered.set()

    def wait(self) -> str | None:
        """Waits for the answer, removes it from this object, and returns it. Called on the login's thread."""
        self._answered.wait()
        with self._lock:
            answer, self._answer = self._answer, None
        return answer


class LoginQuestions(QObject):
    """Implements `torchyard_core.fleet.credential_prompts.Prompter` for the window. Questions are shown one at a time.

    For followed runs, each attempt to reconnect includes a login. A question that the user declined to answer is
    therefore not asked again until the user starts an action that may need the answer (`begin`).
    """

    asked = Signal(object)
    """Emitted with a WaitingQuestion to show and answer, on the GUI thread."""
    withdrawn = Signal()
    """Emitted when the question that is shown no longer needs an answer."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self._jobs = Jobs(self)
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._waiting: WaitingQuestion | None = None
        self._given_up: set[str] = set()
        self._is_quiet = False
        self._is_closed = False

    def begin(self) -> None:
        """Allows questions again. Called when the user starts an action that may need logins."""
        with self._guard:
            self._is_quiet = False
            self._given_up.clear()

    def hush(self) -> None:
        """Withdraws the current question, and suppresses further questions until `begin` is called."""
        with self._guard:
            self._is_quiet = True
            waiting = self._waiting
        if waiting is not None:
            waiting.answer(None)
        self.withdrawn.emit()

    def close(self) -> None:
        """Withdraws the current question, and suppresses all later ones. Called when the window closes."""
        with self._guard:
            self._is_closed = True
        self.hush()
        self._jobs.close()

    def ask(self, question: CredentialPrompt) -> str | None:
        """Waits for the user's answer and returns it. Called on the thread of the login.

        Returns:
            The answer, or None if the user declined to answer, questions are suppressed, or the window was closed.
        """
        with self._turn:
            waiting = WaitingQuestion(question)
            with self._guard:
                if self._is_closed or self._is_quiet or question.about in self._given_up:
                    return None
                self._waiting = waiting
            self._jobs.tell(self.asked.emit, waiting)
            answer = waiting.wait()
            with self._guard:
                self._waiting = None
                if answer is None:
                    self._given_up.add(question.about)
            return answer
