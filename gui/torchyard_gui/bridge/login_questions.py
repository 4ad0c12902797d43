"""Logins that need to know something of the user: their threads wait here while the window asks.

Answers are handed through and kept nowhere in the window; what is worth remembering, the logins remember.
"""

from __future__ import annotations

import threading

from PySide6.QtCore import QObject, Signal

from torchyard_core.fleet.credential_prompts import Question
from torchyard_gui.bridge.jobs import Jobs


class WaitingQuestion:
    """A question with the login that waits for its answer. All of it is safe to use from any thread."""

    def __init__(self, question: Question):
        self.question = question
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._answer: str | None = None

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    def answer(self, text: str | None) -> None:
        """The user's answer, None where they give up. Only the first counts."""
        with self._lock:
            if not self._answered.is_set():
                self._answer = text
                self._answered.set()

    def wait(self) -> str | None:
        """On the login's thread: the answer, once there is one. It is not kept."""
        self._answered.wait()
        with self._lock:
            answer, self._answer = self._answer, None
        return answer


class LoginQuestions(QObject):
    """Who asks the user for a Fleet (`fleet.questions.Questions`), one thing after the other.

    Runs are followed across lost connections, with a login at every try. What somebody gave up is therefore not asked
    again until they do something that needs it: `begin`.
    """

    asked = Signal(object)
    """A WaitingQuestion, in the GUI thread. Whoever hears of it shows it and answers."""
    withdrawn = Signal()
    """Nobody waits for the answer any more."""

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
        """The user has begun something that may need logins: they are there to be asked."""
        with self._guard:
            self._is_quiet = False
            self._given_up.clear()

    def hush(self) -> None:
        """The user has called off what needed logins: what is asked is given up, and nothing more until `begin`."""
        with self._guard:
            self._is_quiet = True
            waiting = self._waiting
        if waiting is not None:
            waiting.answer(None)
        self.withdrawn.emit()

    def close(self) -> None:
        """For a window that closes: every login that waits, or comes later, is told that nobody answers."""
        with self._guard:
            self._is_closed = True
        self.hush()
        self._jobs.close()

    def ask(self, question: Question) -> str | None:
        """On a login's thread: the user's answer. None where they give up, or nobody is there any more."""
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
