"""Runs commands, and checks that every command prints no traceback, and valid JSON with `--json`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.lab import Desktop, LabHost
from torchyard_core.cli.root_command import main


@dataclass(frozen=True)
class Done:
    """The output of a command."""

    stdout: str
    stderr: str


def torchyard(desktop: Desktop, *arguments: str | Path, code: int = 0, stdin: str | Path = os.devnull) -> Done:
    """Runs a command in this process until it ends, and asserts its exit code.

    Starting an interpreter for each of about a hundred commands would take a minute. Tests that need the command as a
    separate process use `desktop.start`.

    Args:
        code: Expected exit code.
        stdin: File that the command reads as its standard input.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    command = ["torchyard", "--home", str(desktop.home), *map(str, arguments)]
    with ExitStack() as around:
        given = around.enter_context(Path(stdin).open())
        around.enter_context(patch.dict(os.environ, desktop.environment(), clear=True))
        around.enter_context(patch.multiple(sys, argv=command, stdin=given))
        around.enter_context(contextlib.chdir(desktop.directory))
        around.enter_context(contextlib.redirect_stdout(stdout))
        around.enter_context(contextlib.redirect_stderr(stderr))
        ended = around.enter_context(pytest.raises(SystemExit))
        main()
    done = Done(stdout.getvalue(), stderr.getvalue())
    assert (ended.value.code or 0) == code, (ended.value.code, done)
    return done


def answer(desktop: Desktop, *arguments: str | Path, code: int = 0, stdin: str | Path = os.devnull) -> Any:
    """Runs a command with `--json`; returns the parsed output."""
    return json.loads(torchyard(desktop, *arguments, "--json", code=code, stdin=stdin).stdout)


def daemons_on(host: LabHost) -> list[int]:
    """Returns the PIDs of Torchyard's daemons on a host: the children of the host's first process, except for logins.

    Shortly after a login has ended, the process that forked the daemon may be included.
    """
    found: list[int] = []
    for _ in range(100):
        before, found = (
            found,
            [int(pid) for pid in host.exec(["pgrep", "-P", "1", "-f", "version_info"]).stdout.split()],
        )
        if len(found) < 2 and found == before:
            break
        time.sleep(0.05)
    return found


def ours_on(host: LabHost) -> Path:
    """Returns the agent's folder on a host."""
    return host.home / ".torchyard"
