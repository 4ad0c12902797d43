"""User authentication with keys of the ssh-agent, key files, and prompts for passwords and codes.

Keys that need no prompt are tried first (`private_keys.ordered_keys`). A server may require several methods
(AuthenticationMethods).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey

from torchyard_core.errors import LoginRefused
from torchyard_core.fleet.credential_prompts import (
    CredentialCache,
    CredentialKind,
    CredentialPrompt,
    NotAnswered,
    printable,
)
from torchyard_core.fleet.ssh.interactive_auth import ASKING_METHODS, InteractiveAuth
from torchyard_core.fleet.ssh.private_keys import BadKey, KeyFile, WrongPassphrase, agent_keys, ordered_keys
from torchyard_core.fleet.ssh.route import Route
from torchyard_core.next_steps import Advice, SetHostField

LOGIN_TIMEOUT_S = 60.0
"""Timeout in seconds for each authentication request. It is long because logins on slow hosts may take 10 s."""
PATIENT_FOR_S = 10.0
"""Minimum age in seconds at which a login counts as expired if the server closes the connection during a prompt.

If the connection is closed earlier, the server may have refused the login.
"""
METHODS = ("publickey", *ASKING_METHODS)
"""The authentication methods in the order in which they are tried."""


class LoginExpired(Exception):
    """Raised if the server closed the connection during a prompt. The next login attempt uses the user's answer."""


class Login:
    """One authentication attempt over a transport whose host key has been checked."""

    def __init__(self, route: Route, transport: paramiko.Transport, secrets: CredentialCache, began: float):
        """Prepares an attempt. `began` is the time (monotonic) of the first attempt of this login."""
        self._route = route
        self._transport = transport
        self._secrets = secrets
        self._began = began
        self._opened = time.monotonic()
        self._interactive = InteractiveAuth(route, transport, secrets, began)
        self._asked_passphrase = False
        self._encrypted: list[KeyFile] = []
        """Encrypted key files whose keys the ssh-agent does not hold."""
        self._tried: list[str] = []
        self._problems: list[str] = []

    def run(self) -> None:
        """Authenticates the user.

        Raises:
            LoginRefused: The server accepted no method, or the user cancelled. The message lists what was tried.
            LoginExpired: The server closed the connection during a prompt.
            paramiko.SSHException, EOFError, OSError: The connection was lost.
        """
        self._transport.auth_timeout = LOGIN_TIMEOUT_S
        try:
            self._run()
        except NotAnswered as error:
            raise self._unanswered(error.question) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if self._transport.is_active():
                raise
            if self._expired_during_prompt:
                raise LoginExpired from error
            if isinstance(error, paramiko.AuthenticationException):
                raise self._refused(closed=True) from error
            raise

    def _run(self) -> None:
        # Keys are tried first, because an accepted key saves the two round trips of asking for the accepted methods.
        further = None if "publickey" in self._route.refused_methods else self._by_open_keys()
        done = set() if further is None else {"publickey"}
        if further is None:
            further = self._start()
        while further:
            left = set(further) - self._route.refused_methods - done
            method = next((method for method in METHODS if method in left), None)
            if method is None:
                raise self._refused(closed=False)
            done.add(method)
            accepted = self._by_encrypted_keys() if method == "publickey" else self._by_prompts(method)
            if accepted is not None:
                further = accepted

    def _start(self) -> Sequence[str]:
        """Asks the server for its authentication methods. The result is empty if no authentication is required."""
        try:
            accepted: Sequence[str] = self._transport.auth_none(self._route.user)
        except paramiko.BadAuthenticationType as refusal:
            return refusal.allowed_types
        return accepted

    # Each of the following functions returns the authentication methods that are still required, or None if the server
    # has refused. An empty result means that the user is authenticated.

    def _by_open_keys(self) -> Sequence[str] | None:
        with agent_keys(self._route) as held:
            open_keys, self._encrypted = ordered_keys(self._route, held)
            for key in open_keys:
                description = key.display_path if isinstance(key, KeyFile) else _description(key)
                if (accepted := self._by_key(key, description)) is not None:
                    return accepted
        return None

    def _by_encrypted_keys(self) -> Sequence[str] | None:
        for file in self._encrypted:
            if (accepted := self._by_key(file, file.display_path)) is not None:
                return accepted
        return None

    def _by_key(self, key: paramiko.PKey | KeyFile, description: str) -> Sequence[str] | None:
        try:
            opened = self._opened_key(key) if isinstance(key, KeyFile) else key
        except BadKey as bad:
            self._problems.append(str(bad))
            return None
        if opened is None:
            return None
        self._tried.append(description)
        try:
            accepted: Sequence[str] = self._transport.auth_publickey(self._route.user, opened)
        except paramiko.SSHException:
            if not self._transport.is_active():
                raise
            return None
        return accepted

    def _opened_key(self, file: KeyFile) -> paramiko.PKey | None:
        """Returns the key of a file, or None if the key is encrypted and the user cannot be prompted or skips it.

        Raises BadKey if the file is unusable.
        """
        if not file.encrypted:
            return file.open()
        if not self._may_ask:
            self._problems.append(f"the key {file.display_path} is encrypted, and no ssh-agent holds it")
            return None
        self._asked_passphrase = True
        return self._secrets.obtain(
            # The key of the cache contains the public key, because the file may be replaced by another key.
            ("key", str(file.path), file.public),
            CredentialPrompt(CredentialKind.PASSPHRASE, self._route.name, f"the key {file.display_path}", "Passphrase"),
            self._began,
            lambda passphrase: _unlocked(file, passphrase),
            "Wrong passphrase.",
        )

    def _by_prompts(self, method: str) -> Sequence[str] | None:
        if not self._may_ask:
            self._problems.append("it asks for a password or code")
            return None
        self._tried.append(method)
        return self._interactive.authenticate(method)

    @property
    def _may_ask(self) -> bool:
        return self._secrets.can_ask and not self._route.batch

    @property
    def _expired_during_prompt(self) -> bool:
        asked = self._asked_passphrase or self._interactive.asked
        return asked and not self._interactive.refused and time.monotonic() - self._opened >= PATIENT_FOR_S

    def _refused(self, *, closed: bool) -> LoginRefused:
        route = self._route
        reasons = [f"tried {', '.join(dict.fromkeys(self._tried))}"] if self._tried else []
        reasons += dict.fromkeys(self._problems)
        ended = " and closed the connection" if closed else ""
        question = "Is the user right, and is the public key in that user's ~/.ssh/authorized_keys?"
        hint: Advice = (question, SetHostField(route.name, "user"))
        if route.is_bastion:
            there = f"Set `User` and `IdentityFile` of {route.name} in ~/.ssh/config, or jump by user@{route.name}."
            hint = (question, there, SetHostField(route.name, "user"))
        if closed and len(self._tried) > 1:
            hint = "It limits attempts: name the right key with `identity_file`, or IdentitiesOnly in ~/.ssh/config."
        elif any("encrypted" in problem for problem in self._problems):
            hint = "Run `ssh-add` with that key, or try again on a terminal, where its passphrase can be asked for."
        elif any("password" in problem for problem in self._problems):
            hint = "Try again on a terminal, where you can be asked, or set up a key with `ssh-copy-id`."
        return LoginRefused(
            route.name,
            f"{route.name} ({route.place}) refused the login of {route.user}{ended} "
            f"({'; '.join(reasons or self._without_keys())}).",
            hint=hint,
        )

    def _without_keys(self) -> list[str]:
        """Returns the reasons why there is no key to try."""
        named = [Path(path) for path in self._route.identity_files]
        missing = [f"the key {path} does not exist" for path in named if not path.exists()]
        return missing or [f"{path} is not a key file" for path in named] or ["there is no key to try"]

    def _unanswered(self, question: CredentialPrompt) -> LoginRefused:
        other_way = (
            "`ssh-add` opens the key for all programs."
            if question.kind is CredentialKind.PASSPHRASE
            else "`ssh-copy-id` sets up a key, which needs no prompt."
        )
        return LoginRefused(
            self._route.name,
            f"the login on {self._route.name} ({self._route.place}) was cancelled: "
            f"no valid {question.kind} was given for {question.about}.",
            hint=f"Try again when you have it. {other_way}",
        )


def _unlocked(file: KeyFile, passphrase: str) -> paramiko.PKey | None:
    try:
        return file.open(passphrase)
    except WrongPassphrase:
        return None


def _description(key: AgentKey) -> str:
    return f"the ssh-agent's {printable(key.comment) or 'key'}"
