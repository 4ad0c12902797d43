"""Authentication by the methods that prompt the user: password and keyboard-interactive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import paramiko

from torchyard_core.fleet.credential_prompts import TRIES, CredentialCache, CredentialKind, CredentialPrompt, printable
from torchyard_core.fleet.ssh.route import Route

ANSWER_TIMEOUT_S = 600.0
"""Time limit in seconds for the user's answers to a server's prompts.

Most servers close the connection after two minutes.
"""
ASKING_METHODS = ("keyboard-interactive", "password")


class InteractiveAuth:
    """Answers the server's prompts over one transport."""

    def __init__(self, route: Route, transport: paramiko.Transport, secrets: CredentialCache, began: float):
        self._transport = transport
        self._secrets = secrets
        self._began = began
        self._user = route.user
        self._host = route.name
        self._about = f"{route.user} on {route.name} ({route.place})"
        self._account = ("account", route.user, route.place)
        self._complaint = ""
        self._used: set[tuple[str, ...]] = set()
        self.asked = False
        """Whether `authenticate` was called. If so, the user may have been prompted, by this or a concurrent login."""
        self.refused = False
        """Whether the server rejected an answer."""

    def authenticate(self, method: str) -> Sequence[str] | None:
        """Tries the method up to TRIES times. Accepted passwords are kept in the cache; one-time codes are not.

        Returns:
            The methods that the server still requires (empty: authenticated), or None if all answers were rejected.

        Raises:
            NotAnswered: The user cancelled a prompt, or cannot be prompted.
            paramiko.SSHException: The connection was lost, or the server does not support the method.
        """
        self._complaint = ""
        self.asked = True
        with self._secrets.exclusive(self._account):
            for _ in range(TRIES):
                self._used.clear()
                try:
                    return self._attempt(method)
                except paramiko.AuthenticationException:
                    if not self._transport.is_active():
                        raise
                    self.refused = True
                    for key in self._used:
                        self._secrets.forget(key)
                    self._complaint = "The host did not accept that."
        return None

    def _attempt(self, method: str) -> Sequence[str]:
        accepted: Sequence[str]
        if method == "password":
            password = self._known_or_asked(
                CredentialPrompt(CredentialKind.PASSWORD, self._host, self._about, "Password"), keep=True
            )
            accepted = self._transport.auth_password(self._user, password, fallback=False)
            return accepted
        before, self._transport.auth_timeout = self._transport.auth_timeout, ANSWER_TIMEOUT_S
        try:
            accepted = self._transport.auth_interactive(self._user, self._answers)
        finally:
            self._transport.auth_timeout = before
        return accepted

    def _answers(self, title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
        """Answers the server's prompts. Called on the transport's thread, where an exception ends the login."""
        text = printable(f"{title} {instructions}")
        return [self._answer(text, printable(prompt).rstrip(": ") or "Answer", echo) for prompt, echo in prompts]

    def _answer(self, text: str, prompt: str, echo: bool) -> str:
        question = CredentialPrompt(
            CredentialKind.ANSWER,
            self._host,
            self._about,
            prompt,
            hidden=not echo,
            instructions=text,
            complaint=self._complaint,
        )
        # One-time codes are not stored, because the server rejects a code that was already used.
        return self._known_or_asked(question, keep=not echo and "password" in prompt.lower())

    def _known_or_asked(self, question: CredentialPrompt, *, keep: bool) -> str:
        key = (*self._account, question.prompt)
        if keep and key not in self._used and (known := self._secrets.known(key)) is not None:
            self._used.add(key)
            return str(known)
        answer = self._secrets.ask(self._account, replace(question, complaint=self._complaint), self._began)
        self._used.add(key)
        if keep:
            # The answer is stored before the server accepts it. If the server has closed the connection during the
            # prompt, the next login attempt uses the stored answer.
            self._secrets.remember(key, answer)
        return answer
