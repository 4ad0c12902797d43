"""Tests that a signal reaches only the identified process, and that a message reaches the terminals of the process's
user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from torchyard_agent.enforcement import process_identity, terminal_messages
from torchyard_agent.enforcement.process_identity import ANOTHER, GONE, REFUSED, SENT, Identity, identify, send
from torchyard_agent.telemetry.procfs import read_stat


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_a_signal_reaches_only_the_identified_process(
    sleeper: subprocess.Popen[bytes], has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_identity, "HAS_PIDFD", has_pidfd and process_identity.HAS_PIDFD)
    known = identify(sleeper.pid)
    assert known is not None
    assert known.uid == os.getuid()
    # The start time differs, as if the process had exited and its PID had been reused.
    assert send(known._replace(started=known.started - 1), signal.SIGKILL) == ANOTHER
    assert send(known._replace(uid=known.uid + 1), signal.SIGKILL) == ANOTHER
    assert sleeper.poll() is None
    assert send(known, signal.SIGTERM) == SENT
    assert sleeper.wait(60) == -signal.SIGTERM
    assert send(known, signal.SIGTERM) == GONE
    assert identify(sleeper.pid) is None


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert send(known, signal.SIGTERM) == GONE


def test_a_process_whose_main_thread_has_exited_is_identified_and_ended() -> None:
    program = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: read_stat(process.pid)[0] == b"Z")
        known = identify(process.pid)
        assert known is not None
        assert known.uid == os.getuid()
        assert send(known, signal.SIGKILL) == SENT
        assert process.wait(60) == -signal.SIGKILL


def test_init_is_never_signalled() -> None:
    assert send(Identity(1, 0, 0), signal.SIGTERM) == REFUSED
    assert send(Identity(0, 0, 0), signal.SIGTERM) == REFUSED


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[int]:
    """Creates a pseudo-terminal, and a link to its device in a folder. Yields the descriptor to read its output."""
    master, slave = os.openpty()
    (tmp_path / "7").symlink_to(os.ttyname(slave))
    yield master
    os.close(master)
    os.close(slave)


def test_a_message_appears_on_the_users_terminals_without_control_characters(tmp_path: Path, terminal: int) -> None:
    assert terminal_messages.write(os.getuid(), "your GPU is\x1b[2J booked\nby lee", str(tmp_path)) == 1
    written = os.read(terminal, 4096).decode()
    assert "your GPU is[2J bookedby lee [" in written
    assert "\x1b" not in written
    assert terminal_messages.write(os.getuid() + 4711, "hello", str(tmp_path)) == 0


def test_other_files_are_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("")
    assert terminal_messages.write(os.getuid(), "hello", str(tmp_path)) == 0
    assert (tmp_path / "0").read_text() == ""
    assert terminal_messages.write(os.getuid(), "hello", str(tmp_path / "none")) == 0


def test_a_terminal_without_a_reader_does_not_block(tmp_path: Path, terminal: int) -> None:
    reached = [terminal_messages.write(os.getuid(), "x" * 500, str(tmp_path)) for _ in range(500)]
    assert reached[0] == 1
    assert reached[-1] == 0
