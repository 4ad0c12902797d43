"""Tests that the window shows the errors that the command line reports, each beside its cause.

A failed launch leaves nothing on a host.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.end_to_end.running import programs_on, topology
from tests.end_to_end.test_bad_input import ON_ONE, TORCH
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS, SimulatedUser
from tests.lab import Desktop, HostSpec, Lab
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until
from torchyard_core.fleet.host_check import READY
from torchyard_gui.launch.panel import LaunchPanel

pytestmark = pytest.mark.lab


def red_lines(person: SimulatedUser, row: str) -> str:
    """Launches, waits until the launch is refused, and returns the text of the checklist's failed row."""
    panel = person.press_launch()
    person.wait_until(panel.again.isVisible, LAUNCHED_WITHIN_MS)
    red = [name for name, shown in panel.checklist.rows.items() if shown.failed]
    assert red == [row], [panel.row(name).texts for name in red]
    assert person.window.current == "topology"
    text = " ".join(panel.row(row).texts)
    person.wait_until(panel.row(row).isVisible)
    assert "`torchyard " not in text, "the command line's way out is not the window's"
    assert "Traceback" not in text
    return text


def red_topology(person: SimulatedUser) -> list[str]:
    """Returns the lines of the checklist's topology row, or an empty list if the checklist is hidden."""
    panel = person.window.findChild(LaunchPanel)
    return panel.row("topology").texts if panel is not None and panel.isVisible() else []


def card_says(person: SimulatedUser, name: str) -> str:
    """Returns the text on a host's card and in its details."""
    person.hosts_were_asked()
    person.window.show_page("fleet")
    page = person.fleet_page
    page.list.choose(name)
    status = person.fleet.status(name)
    assert status is not None
    assert status.state != READY
    assert page.list.action_button(name) is not None, "the card has no way out"
    assert page.details.title.text() == name
    shown = [field.text() for _, field in page.details.keys if not field.isHidden()]
    assert shown == [field.text() for field in page.list._fingerprints.get(name, [])]
    return " ".join([page.details.problems.text(), *shown])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools: [", "topology.yaml"),
        ("pools:\n  - {name: w, role: worker, replcas: 2}\nprogram: {script: train.py}", "replcas.*replicas"),
        ("pools:\n  - {name: w, role: worker, replicas: 0}\nprogram: {script: train.py}", "replicas.*from 1 to"),
        ("pools:\n  - {name: w, role: worker, replicas: 1}\nprogram: {script: tran.py}", "tran.py"),
        ("pools:\n  - {name: w, role: worker, replicas: 1, hosts: [gpu-x]}\nprogram: {script: train.py}", "gpu-x"),
        (
            "strategy: {kind: hogwild}\npools:\n  - {name: w, role: worker, replicas: 1}\n"
            "  - {name: s, role: ps, replicas: 1}\nprogram: {script: train.py}",
            "has nothing to do: hogwild uses no ps",
        ),
    ],
)
def test_a_wrong_document_is_reported_on_the_page_and_touches_no_host(
    bare_hosts: None, window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path, text: str, said: str
) -> None:
    person = window_of(desktop, topology(tmp_path / "wrong", "\n" + text, train_py="print()"))
    page = person.topology
    page.checks.now()
    if page.launch_action.isEnabled():
        person.press(page.bar.launch)
        person.wait_until(lambda: page.notice_bar.isVisible() or red_topology(person))
    told = [page.notice_bar.text, page.bar.file.text(), *(problem.message for problem in page.problems.problems)]
    told += red_topology(person)
    assert any(re.search(said, line) for line in told), told
    assert not any((host.home / ".torchyard").exists() for host in lab3.hosts)


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ({"user": "stranger"}, ("gpu-a", "refused the login of stranger")),
        ({"user": "nobody"}, ("gpu-a", "account is currently not available")),
    ],
)
def test_a_login_that_fails_is_reported_in_the_checklist_and_on_the_card(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path, fleet: dict[str, str], said: tuple[str, ...]
) -> None:
    desktop.use(lab3, **fleet)
    person = window_of(desktop, topology(tmp_path / "login", ON_ONE))
    for text in (red_lines(person, "host"), card_says(person, "gpu-a")):
        assert all(words in text for words in said), text


def test_a_changed_key_is_reported_in_the_checklist_and_on_the_card(
    window_of: OpenWindow, lab: LabFactory, make_desktop, tmp_path: Path
) -> None:
    (host,) = (hosts := lab(1)).hosts
    desktop = make_desktop(hosts)
    before = host.host_key_fingerprint
    host.change_host_key()
    person = window_of(desktop, topology(tmp_path / "changed", ON_ONE))
    for text in (red_lines(person, "host"), card_says(person, "gpu-a")):
        assert "has changed" in text
        assert before in text
        assert host.host_key_fingerprint in text
        assert "the connection is intercepted" in text


def test_hosts_without_a_python_that_will_do(
    window_of: OpenWindow, lab: LabFactory, make_desktop, tmp_path: Path
) -> None:
    hosts = lab(hosts=[HostSpec("gpu-a", python="none"), HostSpec("gpu-b", python="3.6")])
    person = window_of(make_desktop(hosts, python=None), topology(tmp_path / "none", ON_ONE))
    for text in (red_lines(person, "host"), card_says(person, "gpu-a")):
        assert "no Python ≥ 3.9 on gpu-a" in text
    assert re.search(r"3\.6\.15 at ", card_says(person, "gpu-b"))


@pytest.mark.parametrize(
    ("python", "row", "said"),
    [
        ("/usr/bin/python3", "torch", "orch is not installed for /usr/bin/python3 on gpu-a"),
        ("/opt/nothing/bin/python", "python", "/opt/nothing/bin/python on gpu-a"),
    ],
)
def test_no_torch_and_no_python_of_that_name(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path, python: str, row: str, said: str
) -> None:
    desktop.use(lab3, python=python)
    person = window_of(desktop, topology(tmp_path / "less", TORCH, train_py="print()"))
    assert said in red_lines(person, row)
    wait_until(lambda: not programs_on(lab3))


def test_a_secret_that_is_not_set(window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    text = ON_ONE.replace('"600"]', '"600"], secrets: [WANDB_API_KEY]')
    person = window_of(desktop, topology(tmp_path / "secret", text))
    assert "WANDB_API_KEY is not set" in red_lines(person, "topology")
    assert not programs_on(lab3)


def test_a_missing_program_is_reported_on_the_page_of_the_run(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    person = window_of(desktop, topology(tmp_path / "missing", ON_ONE.replace("sleep", "no-such-program")))
    person.press_launch()
    person.on_the_runs_page()
    person.wait_until(lambda: person.picture.is_over)
    person.wait_until(person.runs.run_view.notice.isVisible)
    assert "no-such-program" in person.runs.run_view.notice.text
    wait_until(lambda: not programs_on(lab3))


def test_a_full_disk(window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    host.exec(["mkdir", "-p", "/root/.torchyard"], check=True)
    host.exec(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", "/root/.torchyard"], check=True)
    try:
        person = window_of(desktop, topology(tmp_path / "full", ON_ONE))
        text = red_lines(person, "host")
        assert "gpu-a" in text
        assert "No space left" in text
        assert "disk space" in text
    finally:
        host.exec(["umount", "-l", "/root/.torchyard"], check=True)
