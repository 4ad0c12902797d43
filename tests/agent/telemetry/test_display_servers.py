"""Tests that display servers are recognized by their executables and not by their process names."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.telemetry.display_servers import draws_screen, is_display_server
from torchyard_agent.telemetry.process_owners import Owners

SLEEP = shutil.which("sleep") or "/bin/sleep"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to install an executable as root does")


@pytest.fixture
def start() -> Iterator[Callable[[Path], int]]:
    """Yields a function that starts a process with the given executable and returns its PID."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(path: Path) -> int:
        started.append(subprocess.Popen([path, "60"]))
        return started[-1].pid

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def installed() -> Iterator[Path]:
    """Yields a root-owned executable in a folder that, like `/usr/bin`, only root may write to."""
    with tempfile.TemporaryDirectory(dir="/opt") as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copy(SLEEP, Path(folder, "Xorg")))


@needs_root
def test_an_executable_of_root_is_a_display_server(installed: Path, start: Callable[[Path], int]) -> None:
    assert is_display_server(start(installed)) is True


@needs_root
def test_an_executable_that_an_upgrade_has_replaced_is_a_display_server(
    installed: Path, start: Callable[[Path], int]
) -> None:
    pid = start(installed)
    installed.unlink()
    shutil.copy(SLEEP, installed)
    assert is_display_server(pid) is True


@needs_root
@pytest.mark.parametrize("change", ["name", "file writable", "folder writable", "owner"])
def test_an_executable_that_a_user_could_have_written_is_none(
    change: str, installed: Path, start: Callable[[Path], int]
) -> None:
    if change == "name":
        installed = installed.rename(installed.with_name("train"))
    elif change == "file writable":
        installed.chmod(0o775)
    elif change == "folder writable":
        installed.parent.chmod(0o777)
    else:
        os.chown(installed, 1234, -1)
    assert is_display_server(start(installed)) is False


def test_an_ended_process_is_no_display_server() -> None:
    assert is_display_server(2**22 + 1) is False


@pytest.mark.parametrize(
    ("display_server", "name", "computes", "draws"),
    [
        (True, "anything", False, True),
        (True, "Xorg", True, False),
        (False, "Xorg", False, False),
        (None, "Xorg", False, True),
        (None, "Xorg", True, False),
        (None, "python", False, False),
    ],
)
def test_the_name_counts_only_if_the_executable_is_hidden(
    display_server: bool | None, name: str, computes: bool, draws: bool
) -> None:
    assert draws_screen(display_server, name, computes) is draws


def test_a_listed_process_has_the_verdict() -> None:
    process: dict[str, Any] = {"pid": os.getpid(), "memory_mb": 1, "computes": True}
    Owners().describe(process, 0.0)
    assert (process["draws_screen"], process["user"]) == (False, Path("/proc/self").owner())
