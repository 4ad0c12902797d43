"""Helpers for tests of logins: a home folder with an SSH configuration, hosts behind a bastion, and prepared answers to
prompts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lab import Lab, LabHost
from torchyard_core.fleet.credential_prompts import CredentialPrompt
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer
from torchyard_core.fleet.ssh.connection import SshConnection

ANSWERED_WITHIN_S = 20.0


class Asked:
    """Records each question and returns the next prepared answer, or None if no answer is left."""

    def __init__(self, *answers: str | None):
        self.questions: list[CredentialPrompt] = []
        self._answers = list(answers)
        self._lock = threading.Lock()

    def ask(self, question: CredentialPrompt) -> str | None:
        assert self._lock.acquire(blocking=False), "two questions at once"
        try:
            self.questions.append(question)
            return self._answers.pop(0) if self._answers else None
        finally:
            self._lock.release()


def write_config(home: Path, lab: Lab, text: str) -> None:
    """Writes the given text, followed by settings for every host, to ~/.ssh/config."""
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (home / ".ssh" / "config").write_text(f"{text}\nHost *\n  User root\n  IdentityFile {lab.identity_file}\n")


def hide_from(host: LabHost, *others: str) -> None:
    """Drops packets between `host` and these addresses, so that clients there need a bastion to reach the host."""
    for address in others:
        host.exec(["ip", "route", "add", "blackhole", f"{address}/32"], check=True)


def desktop_address(lab: Lab) -> str:
    """Returns this machine's address in the lab."""
    return f"{lab.hosts[0].address.rpartition('.')[0]}.1"


def says(connection: SshConnection, command: str) -> str:
    """Runs a command on the host and returns the command's output.

    The command uses the connection's only channel; the connection stays open.
    """
    channel = connection.execute(command)
    text = b""
    while data := channel.receive(ANSWERED_WITHIN_S):
        text += data
    return text.decode()


@contextmanager
def connected(dialer: SshDialer, hosts: Sequence[Host]) -> Iterator[list[SshConnection]]:
    """Logs in to all given hosts, one after the other."""
    with ExitStack() as stack:
        connections = []
        for host in hosts:
            connection = dialer.connect(host)
            stack.callback(connection.close)
            connections.append(connection)
        yield connections


def sessions(host: LabHost) -> int:
    """Returns the number of open login sessions of root on a host."""
    titles = [process.argv[0] for process in host.processes()]
    return sum(title.startswith("sshd: root") and "[" not in title for title in titles)


def half_open(host: LabHost) -> int:
    """Returns the number of connections to a host's sshd whose logins are not yet complete."""
    return sum(process.argv[0].endswith("[net]") for process in host.processes())
