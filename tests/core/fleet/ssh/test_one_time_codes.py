"""Tests of keyboard-interactive logins that require more than a password.

The tests use paramiko's server, because OpenSSH's server would need a PAM module for one-time codes, which a test
machine lacks.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL
from paramiko.server import InteractiveQuery

from torchyard_core.errors import LoginRefused
from torchyard_core.fleet.credential_prompts import CredentialPrompt
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer


class AsksForCodes(paramiko.ServerInterface):
    """A server that asks for a password, and then for a code that is different each time."""

    logins = 0

    def __init__(self) -> None:
        self.step = 0

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> InteractiveQuery:
        self.step = 1
        return InteractiveQuery("Two factors\x1b[2J", "", ("Password: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int | InteractiveQuery:
        if self.step == 1:
            self.step = 2 if responses == ["secret"] else 0
            return InteractiveQuery("", "Look at your device.", ("Verification code: ", True))
        good = self.step == 2 and responses == [f"{AsksForCodes.logins:06d}"]
        AsksForCodes.logins += good
        return AUTH_SUCCESSFUL if good else AUTH_FAILED


class User:
    def __init__(self, *answers: str):
        self.answers = list(answers)
        self.asked: list[CredentialPrompt] = []

    def ask(self, question: CredentialPrompt) -> str | None:
        self.asked.append(question)
        return self.answers.pop(0) if self.answers else None


@contextmanager
def server(key: paramiko.PKey) -> Iterator[int]:
    """Yields the port of a server that asks for codes."""
    transports: list[paramiko.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                transports.append(paramiko.Transport(connection))
                transports[-1].add_server_key(key)
                transports[-1].start_server(event=threading.Event(), server=AsksForCodes())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for transport in transports:
                transport.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(AsksForCodes, "logins", 0)
    key = paramiko.ECDSAKey.generate()
    with server(key) as port:
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        yield Host(name="gpu-a", address="127.0.0.1", port=port, user="lee")


def test_the_password_is_remembered_and_the_code_asked_for_each_time(host: Host, tmp_path: Path) -> None:
    user = User("secret", "000000", "000001")
    dialer = SshDialer(tmp_path / "known_hosts", user)

    for _ in range(2):
        dialer.connect(host).close()

    assert [question.prompt for question in user.asked] == ["Password", "Verification code", "Verification code"]
    password, code, _ = user.asked
    assert (password.hidden, password.instructions) == (True, "Two factors [2J")
    assert (code.hidden, code.instructions) == (False, "Look at your device.")


def test_after_a_wrong_answer_all_is_asked_again(host: Host, tmp_path: Path) -> None:
    user = User("wrong", "000000", "secret", "000000")
    SshDialer(tmp_path / "known_hosts", user).connect(host).close()

    assert [bool(question.complaint) for question in user.asked] == [False, False, True, True]


def test_giving_up_in_the_middle_ends_the_login(host: Host, tmp_path: Path) -> None:
    with pytest.raises(LoginRefused, match=r"no valid answer was given for lee on gpu-a"):
        SshDialer(tmp_path / "known_hosts", User("secret")).connect(host)
