"""Tests that terminal escapes and markup in text from hosts and other users are displayed without effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.running import run, topology
from tests.end_to_end.terminals import terminal
from tests.lab import Desktop, Lab
from torchyard_core.cli.output import print_json, remark, say, table
from torchyard_core.text_sanitizer import log_line, one_line, printable, printable_json

ATTACK = "\x1b]0;owned\x07\x1b]52;c;aGk=\x07\x9b2J\u202egnp.exe"
HARMFUL = ("\x1b", "\x07", "\x9b", "\u202e")
SHOWN = r"\x1b]0;owned\x07\x1b]52;c;aGk=\x07\x9b2J\u202egnp.exe"


def test_control_characters_are_shown_as_escapes_and_other_text_stays() -> None:
    assert printable(ATTACK) == SHOWN
    assert printable("금요일 ✓\n\tÄ 🚂") == "금요일 ✓\n\tÄ 🚂"
    assert one_line("gpu-a\nOK\tgpu-b") == r"gpu-a\nOK\tgpu-b"
    assert json.loads(printable_json(json.dumps({ATTACK: ATTACK}, ensure_ascii=False))) == {ATTACK: ATTACK}
    assert log_line("\x1b[31mred\x1b[0m 1%\r\x1b[32m 9%\x1b[0m\r") == " 9%"
    assert log_line(ATTACK) == SHOWN


def test_nothing_that_a_command_prints_has_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    say(ATTACK)
    remark(ATTACK)
    table(("HOST", "STATE"), [[ATTACK, "down\ngpu-b  up"]])
    print_json({"name": ATTACK})
    said = capfd.readouterr()
    printed = said.out + said.err
    assert not [sign for sign in HARMFUL if sign in printed]
    assert printed.count(SHOWN) == 3
    assert "gpu-b  up\n" not in printed.replace(r"\ngpu-b  up", "")


@pytest.mark.lab
def test_text_of_a_program_is_shown_without_effect(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    text = """\
        pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}]
        program: {script: train.py, max_restarts: 0}
    """
    script = f"print({ATTACK!r}, flush=True)\nraise ValueError({ATTACK!r})\n"
    done = run(desktop, topology(tmp_path / "program", text, train_py=script))
    assert done.code == 1
    for command in (("runs", "show", done.run_id), ("runs", "list"), ("runs", "list", "--json")):
        said = desktop.torchyard(*command)
        assert not [sign for sign in HARMFUL if sign in said.stdout + said.stderr], command
    with terminal(desktop, "runs", "logs", done.run_id) as screen:
        assert screen.read_to_the_end() == 0
    assert SHOWN in screen.everything
    assert not [sign for sign in HARMFUL if sign in screen.everything]
    # The output is not a terminal, so the text is unchanged.
    assert ATTACK in desktop.torchyard("runs", "logs", done.run_id).stdout
