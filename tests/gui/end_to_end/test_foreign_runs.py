"""Tests of restarting a run that was launched by another computer: the window asks before it sends secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel

from tests.end_to_end.running import log_of, run, topology
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS
from tests.gui.end_to_end.test_close_confirmation import answer, question
from tests.lab import Desktop, Lab

pytestmark = pytest.mark.lab

FILE = """\
pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-a]}]
program: {launcher: command, command: [sh, -c, "echo $WANDB_KEY"], workdir: null, secrets: [WANDB_KEY]}
"""


def test_secrets_of_a_foreign_run_are_sent_once_the_user_has_seen_them_by_name(
    window_of: OpenWindow,
    desktop: Desktop,
    make_desktop: Callable[..., Desktop],
    lab3: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = make_desktop(lab3)
    theirs = run(other, topology(tmp_path / "program", FILE), env={"WANDB_KEY": "of the other"})
    assert theirs.code == 0, theirs.stderr
    monkeypatch.setenv("WANDB_KEY", "mine")
    person = window_of(desktop)
    person.hosts_were_asked()
    person.window.show_page("runs")
    person.runs.show_run(theirs.run_id)
    person.wait_until(lambda: person.runs.feed is not None and person.picture.is_over)
    restart = person.button(person.runs.bar, "Restart")
    person.wait_until(restart.isEnabled)

    person.restart_the_run()
    person.wait_until(lambda: question(person), LAUNCHED_WITHIN_MS)
    answer(person, "Launch")
    person.wait_until(lambda: question(person), LAUNCHED_WITHIN_MS)
    asked = question(person)
    assert asked is not None
    said = "\n".join(shown.text() for shown in asked.findChildren(QLabel))
    assert "secrets: WANDB_KEY" in said
    assert "command: sh -c 'echo $WANDB_KEY'" in said
    assert "hosts: gpu-a" in said
    answer(person, "Do not launch")
    person.wait_until(lambda: not person.runs.restarting.is_launching)
    assert len(person.runs.model.history.records()) == 0

    person.restart_the_run()
    person.wait_until(lambda: question(person), LAUNCHED_WITHIN_MS)
    answer(person, "Launch")
    person.wait_until(lambda: question(person), LAUNCHED_WITHIN_MS)
    answer(person, "Send the secrets")
    person.wait_until(lambda: person.runs.model.history.records(), LAUNCHED_WITHIN_MS)
    person.wait_until(lambda: person.picture.is_over, LAUNCHED_WITHIN_MS)
    (record,) = person.runs.model.history.records()
    assert log_of(desktop, record.run_id, "worker-0") == "mine\n"
