"""Passwords and keyboard-interactive: the ways of logging in for which the user is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import paramiko

from torchyard_core.fleet.credential_prompts import TRIES, CredentialCache, Kind, Question, shown
from torchyard_core.fleet.ssh.route import Route

ANSWER_TIMEOUT_S = 600.0
"""How long the user may think. Most servers close after two minutes; the answer then serves the next attempt."""
ASKING_METHODS = ("keyboard-interactive", "password")


class InteractiveAuth:
    """What the server wants to know of the user, over one transport."""

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
        """Whether the user was, or another login of the same account was waited for that asked."""
        self.refused = False
        """Whether the server said no to an answer."""

    def by(self, method: str) -> Sequence[str] | None:
        """The methods that the server wants further, none when all is done; None where it took none of TRIES answers.

        What it took is remembered, but for what looks like a one-time code. Raises NotAnswered.
        """
        self._complaint = ""
        self.asked = True
        with self._secrets.turn(self._account):
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
                    self._complaint = "The host did not take that."
        return None

    def _attempt(self, method: str) -> Sequence[str]:
        accepted: Sequence[str]
        if method == "password":
            password = self._known_or_asked(Question(Kind.PASSWORD, self._host, self._about, "Password"), keep=True)
            accepted = self._transport.auth_password(self._user, password, fallback=False)
            return accepted
        before, self._transport.auth_timeout = self._transport.auth_timeout, ANSWER_TIMEOUT_S
        try:
            accepted = self._transport.auth_interactive(self._user, self._answers)
        finally:
            self._transport.auth_timeout = before
        return accepted

    def _answers(self, title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
        """The server's own questions, on the transport's thread; what is raised here ends the login."""
        said = shown(f"{title} {instructions}")
        return [self._answer(said, shown(prompt).rstrip(": ") or "Answer", echo) for prompt, echo in prompts]

    def _answer(self, said: str, prompt: str, echo: bool) -> str:
        question = Question(
            Kind.ANSWER, self._host, self._about, prompt, hidden=not echo, instructions=said, complaint=self._complaint
        )
        # Codes are good for once: to send one again would only count as a wrong one.
        return self._known_or_asked(question, keep=not echo and "password" in prompt.lower())

    def _known_or_asked(self, question: Question, *, keep: bool) -> str:
        key = (*self._account, question.prompt)
        if keep and key not in self._used and (known := self._secrets.known(key)) is not None:
            self._used.add(key)
            return str(known)
        answer = self._secrets.ask(self._account, replace(question, complaint=self._complaint), self._began)
        self._used.add(key)
        if keep:
            # Before it is taken: should the server have closed while the user typed, the next attempt has it.
            self._secrets.remember(key, answer)
        return answer
