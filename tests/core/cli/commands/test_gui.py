"""Tests that `torchyard gui` starts the window's program and passes on the options that precede the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from torchyard_core.cli.commands import gui
from torchyard_core.cli.root_command import app
from torchyard_core.errors import UsageError

PROGRAM = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
Path(sys.argv[0]).with_name("called.json").write_text(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ.get("WINDOW_EXIT", "0")))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a temporary folder the only one in PATH and the folder of `sys.executable`; returns it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    return tmp_path


@pytest.fixture
def program(folder: Path) -> Path:
    """Creates a fake window program that records its arguments."""
    file = folder / gui.PROGRAM
    file.write_text(PROGRAM, encoding="utf-8")
    file.chmod(0o755)
    return file


def given(program: Path) -> list[str]:
    return list(json.loads(program.with_name("called.json").read_text(encoding="utf-8")))


def gui_command(*arguments: str) -> int:
    code = app([*arguments], standalone_mode=False, prog_name="torchyard")
    return int(code or 0)


def test_the_window_is_given_the_home_the_fleet_and_the_file(program: Path, tmp_path: Path) -> None:
    home, fleet = tmp_path / "home", tmp_path / "team.yaml"
    assert gui_command("--home", str(home), "--fleet", str(fleet), "gui", "train.yaml") == 0
    assert given(program) == ["--home", str(home), "--fleet", str(fleet), "--", "train.yaml"]


def test_without_a_file_it_opens_on_none(program: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert gui_command("--home", str(home), "gui") == 0
    assert given(program) == ["--home", str(home), "--fleet", str(home / "fleet.yaml")]


def test_a_window_that_fails_fails_the_command(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDOW_EXIT", "7")
    ended = CliRunner().invoke(app, ["gui", "--json"])
    assert ended.exit_code == 1
    assert json.loads(ended.stdout) == {"program": str(program), "exit_code": 7}


def test_a_window_that_is_not_installed_is_a_sentence(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"not installed.*torchyard-gui") as caught:
        gui_command("gui")
    assert "pip install" in caught.value.hint


def test_without_a_screen_it_says_so(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(UsageError, match="no display"):
        gui_command("gui")
    assert not program.with_name("called.json").exists()


def test_the_command_line_imports_nothing_of_the_window() -> None:
    assert typer.main.get_group(app).commands["gui"]
    assert "PySide6" not in vars(gui)
