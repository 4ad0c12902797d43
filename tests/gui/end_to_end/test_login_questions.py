"""Tests of login questions in the window: each is asked once for all hosts, and again only after a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit

from tests.end_to_end.ssh.logins import sessions
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS, SimulatedUser
from tests.gui.job_threads import job_threads
from tests.lab import Desktop, HostSpec, Lab
from tests.lab.keys import make_key
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until
from torchyard_gui.bridge.host_status import HostStatus
from torchyard_gui.fleet.labels import sentence
from torchyard_gui.windows.login_dialog import LoginDialog

pytestmark = pytest.mark.lab

PASSPHRASE = "correct horse battery"
PASSWORD = "s3cret-of-lee"
MakeDesktop = Callable[..., Desktop]


@pytest.fixture(scope="module")
def hosts(bare_module_lab: LabFactory) -> Lab:
    """Two hosts that require a key, and one that requires a password."""
    passwords = ("PasswordAuthentication yes", "PubkeyAuthentication no")
    return bare_module_lab(
        hosts=["gpu-a", "gpu-b", HostSpec("gpu-c", user="lee", sshd=passwords, passwords={"lee": PASSWORD})]
    )


@pytest.fixture
def locked(hosts: Lab, tmp_path: Path) -> Path:
    """Returns a key with a passphrase, which gpu-a and gpu-b accept."""
    path = tmp_path / "locked"
    public = make_key(path, "locked", PASSPHRASE)
    for name in ("gpu-a", "gpu-b"):
        folder = hosts[name].home / ".ssh"
        folder.mkdir(exist_ok=True)
        (folder / "authorized_keys").write_text(public + "\n")
    return path


@pytest.fixture
def desktop_of(hosts: Lab, locked: Path, make_desktop: MakeDesktop) -> Callable[..., Desktop]:
    """Returns a function that creates a desktop with the named hosts and only the encrypted key."""

    def made(*names: str) -> Desktop:
        desktop = make_desktop(hosts)
        lines = [
            f"  - {{name: {name}, address: {hosts[name].address}, identity_file: {locked}, "
            f"user: {'lee' if name == 'gpu-c' else 'root'}}}\n"
            for name in names
        ]
        desktop.fleet_file.write_text("version: 1\nhosts:\n" + "".join(lines))
        return desktop

    return made


def shown(person: SimulatedUser) -> LoginDialog | None:
    """Returns the question that is shown, or None."""
    found = [box for box in person.window.findChildren(LoginDialog) if box.isVisible() and not box.waiting.is_answered]
    assert len(found) <= 1, "two questions at once"
    return found[0] if found else None


def asked(person: SimulatedUser) -> LoginDialog:
    """Waits for a question, and checks that it has the keyboard focus."""
    person.wait_until(lambda: shown(person) is not None, LAUNCHED_WITHIN_MS)
    dialog = shown(person)
    assert dialog is not None
    person.wait_until(lambda: QApplication.focusWidget() is dialog.field)
    return dialog


def answer(person: SimulatedUser, text: str) -> LoginDialog:
    """Types an answer and presses Enter."""
    dialog = asked(person)
    QTest.keyClicks(dialog.field, text)
    person.keys(Qt.Key.Key_Return)
    return dialog


def host(person: SimulatedUser, name: str) -> HostStatus:
    status = person.fleet.status(name)
    assert status is not None
    return status


def test_a_locked_key_is_asked_for_once_for_all_hosts(
    window_of: OpenWindow, desktop_of: Callable[..., Desktop], hosts: Lab
) -> None:
    desktop = desktop_of("gpu-a", "gpu-b")
    person = window_of(desktop)

    dialog = asked(person)
    assert not dialog.isModal()
    assert "locked" in dialog.waiting.question.about
    assert dialog.field.echoMode() == QLineEdit.EchoMode.Password
    assert not dialog.complaint.isVisible()
    answer(person, PASSPHRASE)
    person.hosts_were_asked()

    assert [status.has_no_agent for status in person.fleet.hosts] == [True, True]
    person.fleet_page.check_all()
    person.hosts_were_asked()
    assert shown(person) is None
    for path in desktop.home.rglob("*"):
        assert not path.is_file() or PASSPHRASE.encode() not in path.read_bytes(), path


def test_a_wrong_answer_is_asked_again_with_why(window_of: OpenWindow, desktop_of: Callable[..., Desktop]) -> None:
    person = window_of(desktop_of("gpu-a"))

    answer(person, "wrong")
    dialog = answer(person, PASSPHRASE)
    assert "Wrong passphrase" in dialog.complaint.text
    person.hosts_were_asked()

    assert host(person, "gpu-a").has_no_agent


def test_giving_up_is_shown_on_the_hosts_card_and_asked_again_only_when_the_user_retries(
    window_of: OpenWindow, desktop_of: Callable[..., Desktop]
) -> None:
    person = window_of(desktop_of("gpu-a"))

    question = asked(person).waiting.question
    person.keys(Qt.Key.Key_Escape)
    person.hosts_were_asked()

    status = host(person, "gpu-a")
    assert status.state == "login refused"
    assert "no valid passphrase was given for the key" in sentence(status)
    assert "Try again when you have it" in sentence(status)
    assert person.fleet.questions.ask(question) is None  # An automatic retry must not ask a question.

    person.fleet_page.perform_action("gpu-a", "check")
    answer(person, PASSPHRASE)
    person.hosts_were_asked()
    assert host(person, "gpu-a").has_no_agent


def test_several_hosts_ask_one_after_the_other(window_of: OpenWindow, desktop_of: Callable[..., Desktop]) -> None:
    person = window_of(desktop_of("gpu-a", "gpu-c"))

    answers = {"the key": PASSPHRASE, "lee on": PASSWORD}
    for _ in range(2):
        about = asked(person).waiting.question.about
        words = next(words for words in answers if about.startswith(words))
        answer(person, answers.pop(words))
        person.wait_until(lambda: shown(person) is None or len(answers) > 0)
    person.hosts_were_asked()

    assert [status.has_no_agent for status in person.fleet.hosts] == [True, True]


def test_a_window_that_is_closed_while_it_asks_leaves_no_login_behind(
    window_of: OpenWindow, desktop_of: Callable[..., Desktop], hosts: Lab
) -> None:
    person = window_of(desktop_of("gpu-a", "gpu-c"))
    asked(person)
    assert job_threads()

    assert person.window.close()

    assert not person.window.isVisible()
    assert shown(person) is None
    wait_until(lambda: not job_threads())
    wait_until(lambda: sessions(hosts["gpu-a"]) == 0)


def test_calling_the_check_off_takes_the_question_back(
    window_of: OpenWindow, desktop_of: Callable[..., Desktop]
) -> None:
    person = window_of(desktop_of("gpu-a", "gpu-c"))
    asked(person)

    person.fleet_page.cancel()

    assert shown(person) is None
    wait_until(lambda: not job_threads())
    person.qtbot.wait(0)
    assert shown(person) is None
