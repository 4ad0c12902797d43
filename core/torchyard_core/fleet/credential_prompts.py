"""Prompts for passphrases, passwords and one-time codes.

The user is prompted when a login requires a credential. Credentials are kept only in memory, and never written to a
file, a log, an event or JSON.
"""

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
"""Maximum number of attempts per prompt, as in ssh(1)."""
MAX_SHOWN = 400
"""Maximum number of characters of a server's text that are shown."""

Credential = TypeVar("Credential")


class CredentialKind(StrEnum):
    """The kind of a credential."""

    PASSPHRASE = "passphrase"
    """The passphrase of an encrypted private key. It never leaves this computer."""
    PASSWORD = "password"
    """The user's password on the host."""
    ANSWER = "answer"
    """The answer to a prompt of the server, such as a one-time code (keyboard-interactive)."""


@dataclass(frozen=True)
class CredentialPrompt:
    """A prompt for one credential. Text from a server is a single line without control characters."""

    kind: CredentialKind
    host: str
    """The name of the host in the fleet, or the bastion's name as written in the configuration."""
    about: str
    """What the credential is for, such as `the key ~/.ssh/id_ed25519` or `lee on gpu-a (10.0.0.11:22)`.

    Used as the title.
    """
    prompt: str
    """Label of the field: `Passphrase`, or text from the server."""
    hidden: bool = True
    instructions: str = ""
    """Further text from the server; usually empty."""
    complaint: str = ""
    """Why the last answer was rejected; empty on the first attempt."""


class Prompter(Protocol):
    """Prompts the user on the terminal or in a dialog of the window."""

    def ask(self, question: CredentialPrompt) -> str | None:
        """Returns the answer, or None if the user cancels the login. An empty passphrase skips the key.

        A CredentialCache asks one question at a time, on the thread of a login. The call may block this thread.
        """


class NotAnswered(Exception):
    """Raised if a prompt has no valid answer.

    `given_up` is true if the user cancelled or gave no valid answer, and false if the user could not be prompted.
    """

    def __init__(self, question: CredentialPrompt, *, given_up: bool):
        super().__init__(question.about)
        self.question = question
        self.given_up = given_up


class CredentialCache:
    """Credentials entered in this session. If concurrent logins need the same credential, the user is prompted once."""

    def __init__(self, questions: Prompter | None = None):
        """Creates an empty cache. If `questions` is None, the user cannot be prompted."""
        self._questions = questions
        self._asking = threading.Lock()
        self._guard = threading.Lock()
        self._locks: dict[Hashable, threading.RLock] = defaultdict(threading.RLock)
        self._known: dict[Hashable, object] = {}
        self._given_up_at: dict[Hashable, float] = {}

    @property
    def can_ask(self) -> bool:
        """Whether the user can be prompted."""
        return self._questions is not None

    @contextmanager
    def exclusive(self, key: Hashable) -> Iterator[None]:
        """Blocks other logins that need the same credential until the end of the `with` block."""
        with self._guard:
            lock = self._locks[key]
        with lock:
            yield

    def known(self, key: Hashable) -> object | None:
        """Returns the credential stored under `key`, or None if there is none."""
        with self._guard:
            return self._known.get(key)

    def remember(self, key: Hashable, credential: object) -> None:
        """Stores a credential in memory, until `forget` removes it."""
        with self._guard:
            self._known[key] = credential

    def forget(self, key: Hashable) -> None:
        """Removes a stored credential, for example after the server has rejected it."""
        with self._guard:
            self._known.pop(key, None)

    def ask(self, key: Hashable, question: CredentialPrompt, began: float) -> str:
        """Prompts the user and returns the answer.

        Raises NotAnswered if the user cancels or cannot be prompted. Also raises it without a prompt if the user has
        given up a prompt for the same key since `began` (monotonic clock), for example in a concurrent login.
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

    def obtain(
        self,
        key: Hashable,
        question: CredentialPrompt,
        began: float,
        use: Callable[[str], Credential | None],
        complaint: str,
    ) -> Credential | None:
        """Returns the stored credential, or prompts for it up to TRIES times and stores it.

        Args:
            key: The key of the credential in this cache.
            question: The prompt.
            began: When the login began, by the monotonic clock.
            use: Converts an answer to the credential, or returns None for a wrong answer.
            complaint: The message for a wrong answer, shown by the next prompt.

        Returns:
            The credential, or None for an empty answer.

        Raises:
            NotAnswered: The user cancelled or cannot be prompted, or all answers were wrong.
        """
        with self.exclusive(key):
            if (known := self.known(key)) is not None:
                return known  # type: ignore[return-value]  # A key always has the same type of credential.
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


def printable(text: str) -> str:
    """Returns text from a server as one printable line of limited length without terminal control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))[:MAX_SHOWN].strip()
