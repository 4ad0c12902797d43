"""Tests that the command never prints a traceback, even after unexpected exceptions and in unusual environments."""

from __future__ import annotations

import errno
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.core.cli.command_runner import torchyard
from tests.lab import Desktop
from torchyard_core.cli import root_command
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.run_lookup import record_end
from torchyard_core.launch.runs.history import History, RunRecord

MakeDesktop = Callable[..., Desktop]


def shell(desktop: Desktop, command: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs `command` in a shell in which `$T` is `torchyard --home …`."""
    given = {**desktop.environment(env), "T": " ".join(desktop.command())}
    return subprocess.run(
        ["bash", "-c", command], env=given, cwd=desktop.directory, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("gang"), r"a fault in Torchyard itself: KeyError: 'gang'. Please report it with (\S+),"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: No space left on device. Free disk space"),
        (OSError(errno.EROFS, "Read-only file system", b"/x/y"), "/x/y: Read-only file system. Check the permissions"),
    ],
)
def test_an_unexpected_error_is_a_sentence(
    make_desktop: MakeDesktop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def break_down(**options: object) -> None:
        raise error

    monkeypatch.setattr(root_command, "app", break_down)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    done = torchyard(make_desktop(), "hosts", "list", "--json", code=1)

    assert "Traceback" not in done.stderr
    assert re.search(message, done.stderr)
    assert json.loads(done.stdout)["error"]["message"] in done.stderr
    details = [path.read_text() for path in tmp_path.glob("torchyard-fault-*.txt")]
    assert [text for text in details if "break_down" in text] == details
    assert len(details) == isinstance(error, KeyError)


def test_a_broken_pipe_to_another_program_is_no_reader_who_has_gone(
    make_desktop: MakeDesktop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library click silently ends a command at any broken pipe, so the test uses a pipe other than stdout."""

    def break_down(chosen: CommandContext) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(CommandContext, "inventory", break_down)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    done = torchyard(make_desktop(), "runs", "list", "--json", code=1)

    assert "a fault in Torchyard itself: BrokenPipeError" in json.loads(done.stdout)["error"]["message"]
    assert "a fault in Torchyard itself: BrokenPipeError" in done.stderr


def test_a_program_may_be_started_with_nothing_open_and_any_encoding(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    (desktop.directory / "pools.yaml").write_text(
        "version: 1\nname: a\npools: [{name: w, role: worker, replicas: 1}]\nprogram: {script: ≥.py}\n"
    )

    closed = shell(desktop, "$T hosts list --json <&- >&- 2>&-")
    latin = shell(desktop, "$T validate pools.yaml", env={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})
    odd = shell(desktop, "$T validate $'caf\\xe9.yaml' --json")
    full = shell(desktop, "$T hosts list > /dev/full")
    unread = shell(desktop, "mkfifo unread; exec 3<>unread 4>unread 3>&-; $T presets list >&4; echo $?")

    assert closed.returncode == 0
    assert latin.returncode == 1
    assert b"\\u2265.py" in latin.stdout
    assert odd.returncode == 2
    assert "there is no such file" in json.loads(odd.stdout)["error"]["message"]
    assert b"No space left on device. Free disk space there" in full.stderr
    assert full.returncode == 1
    assert unread.stdout == b"1\n"
    assert unread.stderr == b""
    for done in (closed, latin, odd, full, unread):
        assert b"Traceback" not in done.stderr
        assert b"Exception" not in done.stderr


def test_a_run_s_end_that_cannot_be_recorded_is_reported_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path)
    history.save(RunRecord("one", "digits", "digits.yaml", "gpu-a", ("gpu-a",), "2026-11-21T03:00:00Z", "running"))
    full = OSError(errno.ENOSPC, "No space left on device", "one.json")
    monkeypatch.setattr("torchyard_core.launch.runs.history.replace_content", Mock(side_effect=full))

    record_end(history, {"run_id": "one", "state": "stopped", "reason": "", "time": "", "replicas": [], "timings": {}})

    assert "could not be noted in this computer's history: No space left on device: one.json" in capsys.readouterr().err


def test_a_home_that_cannot_be_looked_into_is_no_empty_one(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    desktop.fleet_file.parent.rmdir()
    desktop.fleet_file.parent.write_text("a file where the folder should be")

    done = torchyard(desktop, "hosts", "list", code=2)

    assert "part of this path is a file, not a folder" in done.stderr
