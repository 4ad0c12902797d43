"""Tests of login prompts for passphrases, passwords and codes: after a login, an answer is neither requested again nor
stored.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.ssh.logins import Asked, connected, says, sessions, write_config
from tests.end_to_end.terminals import terminal
from tests.lab import Desktop, HostSpec, Lab
from tests.lab.keys import make_key
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until
from torchyard_core.errors import LoginRefused
from torchyard_core.fleet.credential_prompts import CredentialKind, CredentialPrompt
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer

pytestmark = pytest.mark.lab

MakeDesktop = Callable[..., Desktop]
PASSPHRASE = "correct horse 배터리"
PASSWORD = "s3cret-of-lee"


@pytest.fixture(scope="module")
def hosts(module_lab: LabFactory) -> Lab:
    """Yields hosts that require different kinds of login.

    The host `plain` requires a key, `pam` a keyboard-interactive login, `password` a password, and `both` a key
    followed by a keyboard-interactive login.
    """
    interactive = ("UsePAM yes", "KbdInteractiveAuthentication yes", "PubkeyAuthentication no")
    return module_lab(
        hosts=[
            "plain",
            HostSpec("pam", user="lee", sshd=interactive, passwords={"lee": PASSWORD}),
            HostSpec(
                "password",
                user="lee",
                sshd=("PasswordAuthentication yes", "PubkeyAuthentication no"),
                passwords={"lee": PASSWORD},
            ),
            HostSpec(
                "both",
                user="lee",
                sshd=(
                    "UsePAM yes",
                    "KbdInteractiveAuthentication yes",
                    "AuthenticationMethods publickey,keyboard-interactive",
                ),
                passwords={"lee": PASSWORD},
            ),
        ]
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def encrypted_key(hosts: Lab, home: Path) -> Path:
    """Returns a key with a passphrase. The host `plain` accepts the key, and `~/.ssh/config` specifies it."""
    write_config(home, hosts, "")
    path = home / ".ssh" / "locked"
    public = make_key(path, "locked", PASSPHRASE)
    plain = hosts["plain"]
    (plain.home / ".ssh").mkdir(exist_ok=True)
    (plain.home / ".ssh" / "authorized_keys").write_text(public + "\n")
    (home / ".ssh" / "config").write_text(
        f"Host *\n  IdentityFile ~/.ssh/locked\nMatch originalhost plain*\n  HostName {plain.address}\n  User root\n"
    )
    return path


def dialer(hosts: Lab, home: Path, asked: Asked | None) -> SshDialer:
    known_hosts = home / "known_hosts"
    known_hosts.write_text(hosts.known_hosts)
    return SshDialer(known_hosts, asked)


def as_lee(hosts: Lab, name: str) -> Host:
    return Host(name=name, address=hosts[name].address, user="lee", identity_file=str(hosts.identity_file))


# Tests of prompts for the passphrase of an encrypted key


def test_an_encrypted_key_is_asked_for_once_for_all_hosts(hosts: Lab, home: Path, encrypted_key: Path) -> None:
    asked = Asked(PASSPHRASE)
    dial = dialer(hosts, home, asked)

    with ThreadPoolExecutor(6) as pool:
        connections = list(pool.map(dial.connect, [Host(name=f"plain-{number}") for number in range(6)]))
    try:
        wait_until(lambda: sessions(hosts["plain"]) == 6)
    finally:
        for connection in connections:
            connection.close()
    dial.reread()
    with connected(dial, [Host(name="plain-again")]) as (connection,):
        assert says(connection, "echo $SSH_CONNECTION")

    (question,) = asked.questions
    assert (question.kind, question.about, question.hidden) == (
        CredentialKind.PASSPHRASE,
        "the key ~/.ssh/locked",
        True,
    )


def test_a_wrong_passphrase_is_asked_again_and_giving_up_ends_it_for_all(
    hosts: Lab, home: Path, encrypted_key: Path
) -> None:
    asked = Asked("wrong", PASSPHRASE)
    with connected(dialer(hosts, home, asked), [Host(name="plain")]):
        assert [bool(question.complaint) for question in asked.questions] == [False, True]

    asked = Asked("wrong", None)
    dial = dialer(hosts, home, asked)

    def refusal(name: str) -> str:
        with pytest.raises(LoginRefused) as refused:
            dial.connect(Host(name=name))
        return refused.value.sentence()

    with ThreadPoolExecutor(4) as pool:
        sentences = list(pool.map(refusal, [f"plain-{number}" for number in range(4)]))

    assert len(asked.questions) == 2
    assert all("was cancelled: no valid passphrase was given for the key ~/.ssh/locked" in said for said in sentences)
    # A later attempt must ask for the passphrase again.
    with pytest.raises(LoginRefused):
        dial.connect(Host(name="plain"))
    assert len(asked.questions) == 3


def test_three_wrong_passphrases_are_enough(hosts: Lab, home: Path, encrypted_key: Path) -> None:
    asked = Asked("a", "b", "c", PASSPHRASE)
    with pytest.raises(LoginRefused):
        dialer(hosts, home, asked).connect(Host(name="plain"))
    assert len(asked.questions) == 3


def test_without_a_terminal_the_error_names_the_missing_passphrase(hosts: Lab, home: Path, encrypted_key: Path) -> None:
    with pytest.raises(LoginRefused) as refused:
        dialer(hosts, home, None).connect(Host(name="plain"))

    assert "the key ~/.ssh/locked is encrypted, and no ssh-agent holds it" in refused.value.message
    assert "ssh-add" in refused.value.hint


def test_an_unencrypted_key_avoids_the_question(hosts: Lab, home: Path, encrypted_key: Path) -> None:
    config = home / ".ssh" / "config"
    config.write_text(
        f"Host *\n  IdentityFile ~/.ssh/locked\n  IdentityFile {hosts.identity_file}\n{config.read_text()}"
    )
    asked = Asked()
    with connected(dialer(hosts, home, asked), [Host(name="plain")]):
        assert asked.questions == []


# Tests of keys that an ssh-agent holds


@pytest.fixture
def agent(home: Path) -> Iterator[Path]:
    """Yields the path of the socket of a running ssh-agent."""
    socket = home / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield socket
        finally:
            process.terminate()


def add_key(agent: Path, key: Path, home: Path) -> None:
    """Adds a key to an ssh-agent; a helper program prints the passphrase."""
    answer = home / "answer"
    answer.write_text(f"#!/bin/sh\nprintf '%s' '{PASSPHRASE}'\n")
    answer.chmod(0o700)
    variables = {**os.environ, "SSH_AUTH_SOCK": str(agent), "SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", str(key)], env=variables, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def test_a_key_that_the_agent_holds_is_not_asked_for(
    hosts: Lab, home: Path, encrypted_key: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_key(agent, encrypted_key, home)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    asked = Asked()

    with connected(dialer(hosts, home, asked), [Host(name="plain")]):
        pass
    config = home / ".ssh" / "config"
    config.write_text(f"IdentityAgent none\n{config.read_text()}")
    with pytest.raises(LoginRefused):
        dialer(hosts, home, asked).connect(Host(name="plain"))

    assert len(asked.questions) == 1


def test_the_agent_of_the_configuration_and_a_public_key_file_name_the_key(
    hosts: Lab, home: Path, encrypted_key: Path, agent: Path
) -> None:
    add_key(agent, encrypted_key, home)
    for number in range(7):  # The agent has more keys than MaxAuthTries allows login attempts.
        other = home / f"other-{number}"
        make_key(other, "other")
        add_key(agent, other, home)
    encrypted_key.unlink()
    config = home / ".ssh" / "config"
    config.write_text(
        config.read_text().replace("locked", "locked.pub") + f"  IdentitiesOnly yes\n  IdentityAgent {agent}\n"
    )

    with connected(dialer(hosts, home, None), [Host(name="plain")]):
        pass


# Tests of prompts for passwords and codes


def test_keyboard_interactive_asks_in_the_servers_words_and_once(hosts: Lab, home: Path) -> None:
    asked = Asked(PASSWORD)
    dial = dialer(hosts, home, asked)

    for _ in range(2):
        with connected(dial, [as_lee(hosts, "pam")]) as (connection,):
            assert says(connection, "whoami") == "lee\n"

    (question,) = asked.questions
    assert (question.kind, question.prompt, question.hidden) == (CredentialKind.ANSWER, "Password", True)
    assert question.about == f"lee on pam ({hosts['pam'].address}:22)"


def test_a_password_is_asked_again_when_it_is_wrong_and_once_when_it_is_right(hosts: Lab, home: Path) -> None:
    asked = Asked("wrong", PASSWORD)
    dial = dialer(hosts, home, asked)

    for _ in range(2):
        with connected(dial, [as_lee(hosts, "password")]) as (connection,):
            assert says(connection, "whoami") == "lee\n"

    assert [question.kind for question in asked.questions] == [CredentialKind.PASSWORD] * 2
    assert asked.questions[1].complaint


def test_a_key_and_then_a_password_if_the_host_requires_both(hosts: Lab, home: Path) -> None:
    asked = Asked(PASSWORD)
    with connected(dialer(hosts, home, asked), [as_lee(hosts, "both")]) as (connection,):
        assert says(connection, "whoami") == "lee\n"
    assert len(asked.questions) == 1


@pytest.mark.parametrize("name", ["pam", "password", "both"])
def test_a_cancelled_or_impossible_question_is_a_refused_login(hosts: Lab, home: Path, name: str) -> None:
    with pytest.raises(LoginRefused, match="was cancelled"):
        dialer(hosts, home, Asked(None)).connect(as_lee(hosts, name))
    with pytest.raises(LoginRefused, match="it asks for a password or code") as refused:
        dialer(hosts, home, None).connect(as_lee(hosts, name))
    assert "on a terminal" in refused.value.hint


def test_an_answer_after_the_server_has_closed_is_not_asked_for_again(
    lab: LabFactory, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_core.fleet.ssh.authentication.PATIENT_FOR_S", 0)
    sshd = ("UsePAM yes", "KbdInteractiveAuthentication yes", "PubkeyAuthentication no")
    hosts = lab(hosts=[HostSpec("impatient", user="lee", sshd=sshd, passwords={"lee": PASSWORD})])

    class Slow(Asked):
        def ask(self, question: CredentialPrompt) -> str | None:
            # Restarting sshd ends only this login attempt, as LoginGraceTime would, and does not affect the next one.
            hosts["impatient"].stop_sshd(sessions=True)
            hosts["impatient"].start_sshd()
            return super().ask(question)

    asked = Slow(PASSWORD)
    with connected(dialer(hosts, home, asked), [as_lee(hosts, "impatient")]) as (connection,):
        assert says(connection, "whoami") == "lee\n"
    assert len(asked.questions) == 1


# Tests of prompts that `torchyard hosts check` prints


def test_the_terminal_is_asked_hidden_and_nothing_keeps_the_answer(
    hosts: Lab, home: Path, make_desktop: MakeDesktop
) -> None:
    desktop = make_desktop(hosts)
    place = hosts["pam"].address
    desktop.fleet_file.write_text(f"version: 1\nhosts:\n  - {{name: pam, address: {place}, user: lee}}\n")

    with terminal(desktop, "hosts", "check") as screen:
        at = screen.read_until(f"Password for lee on pam ({place}:22): ")
        screen.type("wrong\n")
        at = screen.read_until("The host did not accept that.", at)
        screen.read_until(": ", at)
        screen.type(PASSWORD + "\n")
        screen.read_to_the_end()

    assert "ready" in screen.shown or "degraded" in screen.shown
    assert PASSWORD not in screen.shown
    assert "Traceback" not in screen.shown
    for path in desktop.directory.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path
    assert PASSWORD not in hosts["pam"].exec(["sh", "-c", "cat /home/lee/.torchyard/hosts/*/*"]).stdout


def test_ctrl_c_at_the_question_leaves_the_terminal_as_it_was(
    hosts: Lab, make_desktop: MakeDesktop, monkeypatch: pytest.MonkeyPatch
) -> None:
    desktop = make_desktop(hosts)
    place = hosts["pam"].address
    desktop.fleet_file.write_text(f"version: 1\nhosts:\n  - {{name: pam, address: {place}, user: lee}}\n")

    # The test starts the command from a shell, as a user would. Without a shell, the command would be the first process
    # of its session, and the kernel would reset the terminal when the command exits.
    line = f"trap : INT; {shlex.join(desktop.command('hosts', 'check'))}; echo exit code $?; stty -a"
    monkeypatch.setattr(desktop, "command", lambda: ["sh", "-c", line])

    with terminal(desktop) as screen:
        screen.read_until("Password for lee")
        screen.type("\x03")
        screen.read_to_the_end()

    assert "exit code 130" in screen.shown
    assert re.search(r" echo\b", screen.shown)
    assert "Traceback" not in screen.shown


def test_without_a_terminal_the_command_says_what_is_needed(hosts: Lab, make_desktop: MakeDesktop) -> None:
    desktop = make_desktop(hosts)
    place = hosts["pam"].address
    desktop.fleet_file.write_text(f"version: 1\nhosts:\n  - {{name: pam, address: {place}, user: lee}}\n")

    done = desktop.torchyard("hosts", "check", "--json")

    (check,) = json.loads(done.stdout)
    assert (done.returncode, check["state"]) == (3, "login refused")
    assert "it asks for a password or code" in check["problems"][0]["message"]
