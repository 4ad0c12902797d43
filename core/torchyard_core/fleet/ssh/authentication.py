"""Logging in: with the agent's keys, with key files, then with what the user is asked for.

The order spares questions: keys that need none come first, and an encrypted file whose key the agent holds is not
opened at all. Methods may be combined (AuthenticationMethods): what is still wanted after a key is done next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import paramiko

from torchyard_core.errors import LoginRefused
from torchyard_core.fleet.credential_prompts import CredentialCache, Kind, NotAnswered, Question, shown
from torchyard_core.fleet.ssh.interactive_auth import ASKING_METHODS, InteractiveAuth
from torchyard_core.fleet.ssh.private_keys import BadKey, KeyFile, WrongPassphrase, agent_keys, key_files
from torchyard_core.fleet.ssh.route import Route

LOGIN_TIMEOUT_S = 60.0
"""A slow host (10 s to log in is seen) is slow, not failed."""
PATIENT_FOR_S = 10.0
"""No sshd closes sooner because its user takes long."""
METHODS = ("publickey", *ASKING_METHODS)
"""In the order in which they are tried."""


class LoginExpired(Exception):
    """Raised where the server has closed while the user was asked: worth another attempt, which has the answer."""


class Login:
    """One attempt to log in over a transport whose host key was checked."""

    def __init__(self, route: Route, transport: paramiko.Transport, secrets: CredentialCache, began: float):
        """`began`: when the login began (monotonic), of which this may not be the first attempt."""
        self._route = route
        self._transport = transport
        self._secrets = secrets
        self._began = began
        self._opened = time.monotonic()
        self._questioned = InteractiveAuth(route, transport, secrets, began)
        self._asked_passphrase = False
        self._locked: list[KeyFile] = []
        """Encrypted files, whose keys no agent holds."""
        self._tried: list[str] = []
        self._lacking: list[str] = []

    def run(self) -> None:
        """Returns when logged in.

        Raises LoginRefused with what was tried and what is lacking, LoginExpired, or what paramiko raises where the
        connection breaks.
        """
        self._transport.auth_timeout = LOGIN_TIMEOUT_S
        try:
            self._run()
        except NotAnswered as nobody:
            raise self._unanswered(nobody.question) from nobody
        except (paramiko.SSHException, EOFError, OSError) as error:
            if self._transport.is_active():
                raise
            if self._held_up_by_the_user:
                raise LoginExpired from error
            if isinstance(error, paramiko.AuthenticationException):
                raise self._refused(closed=True) from error
            raise

    def _run(self) -> None:
        # The common case first: asking what the server takes would cost each login two more round trips.
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
            accepted = self._by_locked_keys() if method == "publickey" else self._by_asking(method)
            if accepted is not None:
                further = accepted

    def _start(self) -> Sequence[str]:
        """The methods that the server takes; none where it lets us in as we are."""
        try:
            accepted: Sequence[str] = self._transport.auth_none(self._route.user)
        except paramiko.BadAuthenticationType as refusal:
            return refusal.allowed_types
        return accepted

    # Each way gives the methods that are wanted further, none when all is done; None where it was refused.

    def _by_open_keys(self) -> Sequence[str] | None:
        files = key_files(self._route)
        named = {file.public for file in files if file.public} if self._route.identity_files else set()
        with agent_keys(self._route) as held:
            in_agent = {key.asbytes() for key in held}
            others = [] if self._route.identities_only else [key for key in held if key.asbytes() not in named]
            left = [file for file in files if file.private and not (file.public and file.public in in_agent)]
            ways: list[tuple[paramiko.PKey | KeyFile, str]] = [
                *((key, f"the ssh-agent's {shown(key.comment) or 'key'}") for key in held if key.asbytes() in named),
                *((file, file.shown) for file in left if not file.encrypted),
                *((key, f"the ssh-agent's {shown(key.comment) or 'key'}") for key in others),
            ]
            self._locked = [file for file in left if file.encrypted]
            for key, what in ways:
                if (accepted := self._by_key(key, what)) is not None:
                    return accepted
        return None

    def _by_locked_keys(self) -> Sequence[str] | None:
        for file in self._locked:
            if (accepted := self._by_key(file, file.shown)) is not None:
                return accepted
        return None

    def _by_key(self, key: paramiko.PKey | KeyFile, what: str) -> Sequence[str] | None:
        try:
            opened = self._opened_key(key) if isinstance(key, KeyFile) else key
        except BadKey as bad:
            self._lacking.append(str(bad))
            return None
        if opened is None:
            return None
        self._tried.append(what)
        try:
            accepted: Sequence[str] = self._transport.auth_publickey(self._route.user, opened)
        except paramiko.SSHException:
            if not self._transport.is_active():
                raise
            return None
        return accepted

    def _opened_key(self, file: KeyFile) -> paramiko.PKey | None:
        """The key; None where it is encrypted and nobody is there to ask, or goes on without it. Raises BadKey."""
        if not file.encrypted:
            return file.open()
        if not self._may_ask:
            self._lacking.append(f"the key {file.shown} is encrypted, and no ssh-agent holds it open")
            return None
        self._asked_passphrase = True
        return self._secrets.settle(
            ("key", str(file.path), file.public),  # a file that was replaced is another key
            Question(Kind.PASSPHRASE, self._route.name, f"the key {file.shown}", "Passphrase"),
            self._began,
            lambda passphrase: _unlocked(file, passphrase),
            "That does not open the key.",
        )

    def _by_asking(self, method: str) -> Sequence[str] | None:
        if not self._may_ask:
            self._lacking.append("it asks for a password or code")
            return None
        self._tried.append(method)
        return self._questioned.by(method)

    @property
    def _may_ask(self) -> bool:
        return self._secrets.can_ask and not self._route.batch

    @property
    def _held_up_by_the_user(self) -> bool:
        asked = self._asked_passphrase or self._questioned.asked
        return asked and not self._questioned.refused and time.monotonic() - self._opened >= PATIENT_FOR_S

    def _refused(self, *, closed: bool) -> LoginRefused:
        route = self._route
        reasons = [f"tried {', '.join(dict.fromkeys(self._tried))}"] if self._tried else []
        reasons += dict.fromkeys(self._lacking)
        ended = " and closed the connection" if closed else ""
        hint = (
            "Is the user right, and is the public key in that user's ~/.ssh/authorized_keys? "
            "Set `user` and `identity_file` for the host in the fleet file or in ~/.ssh/config."
        )
        if closed and len(self._tried) > 1:
            hint = "It takes only so many: name the right key with `identity_file`, or IdentitiesOnly in ~/.ssh/config."
        elif any("encrypted" in what for what in self._lacking):
            hint = "Run `ssh-add` with that key, or try again on a terminal, where its passphrase can be asked for."
        elif any("password" in what for what in self._lacking):
            hint = "Try again on a terminal, where you can be asked, or set up a key with `ssh-copy-id`."
        return LoginRefused(
            route.name,
            f"{route.name} ({route.place}) refused the login of {route.user}{ended} "
            f"({'; '.join(reasons or self._without_keys())}).",
            hint=hint,
        )

    def _without_keys(self) -> list[str]:
        """Why there is no key to try."""
        named = [Path(path) for path in self._route.identity_files]
        missing = [f"the key {path} is not there" for path in named if not path.exists()]
        return missing or [f"{path} is no key's file" for path in named] or ["there is no key to try"]

    def _unanswered(self, question: Question) -> LoginRefused:
        thing = {Kind.PASSPHRASE: "passphrase", Kind.PASSWORD: "password", Kind.ANSWER: "answer"}[question.kind]
        other_way = (
            "`ssh-add` opens the key for all programs."
            if question.kind is Kind.PASSPHRASE
            else "`ssh-copy-id` sets up a key, which needs none."
        )
        return LoginRefused(
            self._route.name,
            f"the login on {self._route.name} ({self._route.place}) was given up: "
            f"no right {thing} was given for {question.about}.",
            hint=f"Try again when you have it. {other_way}",
        )


def _unlocked(file: KeyFile, passphrase: str) -> paramiko.PKey | None:
    try:
        return file.open(passphrase)
    except WrongPassphrase:
        return None
