"""Tests of the output of scripts that fail while they are measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchyard_roles.profiling import script_runner


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores what a script's start changes."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))


def printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what a command prints before it fails."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "excepthook", sys.__excepthook__)  # That of pytest-qt fails the test.
        with pytest.raises(SystemExit) as ended:
            script_runner._run(command)
    assert ended.value.code == 1
    return capsys.readouterr().err


def test_a_syntax_error_is_printed_as_python_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("def forward(:\n")
    lines = printed([str(script)], capsys).splitlines()
    assert lines[0] == f'  File "{script}", line 1'
    assert lines[-1] == "SyntaxError: invalid syntax"
    assert sum("File " in line for line in lines) == 1


@pytest.mark.parametrize("is_module", [False, True])
def test_a_traceback_begins_in_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_module: bool
) -> None:
    script = tmp_path / "failing_script.py"
    script.write_text("def main():\n    raise ValueError('bad batch')\nmain()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = printed(["-m", "failing_script"] if is_module else [str(script)], capsys)
    frames = [line for line in text.splitlines() if line.startswith("  File ")]
    assert frames == [f'  File "{script}", line 3, in <module>', f'  File "{script}", line 2, in main']
    assert text.endswith("ValueError: bad batch\n")


def test_an_exit_of_the_script_is_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data')\n")
    with pytest.raises(SystemExit, match="no data"):
        script_runner._run([str(script)])
