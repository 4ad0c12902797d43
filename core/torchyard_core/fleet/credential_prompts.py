"""What only the user knows: passphrases, passwords, one-time codes. Asked when a login needs it, once, and kept in
memory alone: never in a file, a log, an event or an answer in JSON."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

TRIES = 3
"""As ssh(1): so often may an answer be wrong."""
MAX_SHOWN = 400
"""Characters of a server's own words that are worth showing."""

Thing = TypeVar("Thing")


class Kind(StrEnum):
    """What is asked for."""

    PASSPHRASE = "passphrase"
    """It opens an encrypted key of this computer, and never leaves it."""
    PASSWORD = "password"
    """The user's, on the host."""
    ANSWER = "answer"
    """To a question in the server's own words, such as a one-time code (keyboard-interactive)."""


@dataclass(frozen=True)
class Question:
    """One thing to ask. All of its text is printable, on one line each."""

    kind: Kind
    host: str
    """For whose login, by its name in the fleet; or the bastion's."""
    about: str
    """What it is for, as a title: `the key ~/.ssh/id_ed25519`, `lee on gpu-a (10.0.0.11:22)`."""
    prompt: str
    """What to write before the field: `Passphrase`, or the server's words."""
    hidden: bool = True
    """Whether the answer must not be seen while it is typed."""
    instructions: str = ""
    """More of the server's words; mostly empty."""
    complaint: str = ""
    """Why it is asked again: the last answer was wrong. Empty the first time."""


class Questions(Protocol):
    """Whoever can ask the user: the command on its terminal, the window with a dialog."""

    def ask(self, question: Question) -> str | None:
        """The answer; None where the user gives up, which ends the login. An empty passphrase goes on without the key.

        Called on a login's thread and may block it. Never called twice at once.
        """


class NotAnswered(Exception):
    """Raised where something is needed that nobody said. `given_up`: somebody was there, and would not or could not."""

    def __init__(self, question: Question, *, given_up: bool):
        super().__init__(question.about)
        self.question = question
        self.given_up = given_up


class CredentialCache:
    """What was asked in this session. Several logins that need one thing at once ask once between them."""

    def __init__(self, questions: Questions | None = None):
        """Without `questions` there is nobody to ask."""
        self._questions = questions
        self._asking = threading.Lock()
        self._guard = threading.Lock()
        self._turns: dict[Hashable, threading.RLock] = defaultdict(threading.RLock)
        self._known: dict[Hashable, object] = {}
        self._given_up_at: dict[Hashable, float] = {}

    @property
    def can_ask(self) -> bool:
        """Whether there is somebody."""
        return self._questions is not None

    @contextmanager
    def turn(self, key: Hashable) -> Iterator[None]:
        """Holds back the others who need the same thing, until it is known or given up."""
        with self._guard:
            lock = self._turns[key]
        with lock:
            yield

    def known(self, key: Hashable) -> object | None:
        """What is remembered under `key`."""
        with self._guard:
            return self._known.get(key)

    def remember(self, key: Hashable, thing: object) -> None:
        """Keeps it until the program ends."""
        with self._guard:
            self._known[key] = thing

    def forget(self, key: Hashable) -> None:
        """It was wrong after all."""
        with self._guard:
            self._known.pop(key, None)

    def ask(self, key: Hashable, question: Question, began: float) -> str:
        """The user's answer. `began` is when the login did (monotonic): giving up holds for all logins under way.

        Raises NotAnswered.
        """
        if self._questions is None:
            raise NotAnswered(question, given_up=False)
        with self._asking:
            if self._given_up_at.get(key, began) > began:
                raise NotAnswered(question, given_up=True)
            answer = self._questions.ask(question)
            if answer is None:
                self._given_up_at[key] = time.monotonic()
                raise NotAnswered(question, given_up=True)
            return answer

    def settle(
        self, key: Hashable, question: Question, began: float, use: Callable[[str], Thing | None], complaint: str
    ) -> Thing | None:
        """What `use` makes of the answer, asking again while it makes None of it; None for an empty answer.

        What it made is remembered and given to the next who needs it. Raises NotAnswered, also after TRIES.
        """
        with self.turn(key):
            if (known := self.known(key)) is not None:
                return known  # type: ignore[return-value]  # one key stands for one kind of thing
            for attempt in range(TRIES):
                answer = self.ask(key, replace(question, complaint=complaint if attempt else ""), began)
                if not answer:
                    return None
                made = use(answer)
                if made is not None:
                    self.remember(key, made)
                    return made
            with self._asking:
                self._given_up_at[key] = time.monotonic()
            raise NotAnswered(question, given_up=True)


def shown(text: str) -> str:
    """A server's words as they may be shown: printable, one line, not without end. A terminal obeys what it prints."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))[:MAX_SHOWN].strip()
