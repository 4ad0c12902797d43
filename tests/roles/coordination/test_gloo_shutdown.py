"""Tests that the interpreter exits only after gloo's threads have ended."""

import threading
import time
from pathlib import Path

import pytest

from torchyard_roles.coordination import gloo_shutdown


def thread(tasks: Path, number: int, name: str, state: str) -> Path:
    folder = tasks / str(number)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{number} ({name}) {state} 1 2 3")
    return folder


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets a timeout that is longer than any thread may have to wait for a CPU core."""
    monkeypatch.setattr(gloo_shutdown, "SETTLE_S", 60.0)


def test_a_thread_that_still_works_is_waited_for(tmp_path: Path) -> None:
    thread(tmp_path, 1, "python", "R")
    thread(tmp_path, 2, gloo_shutdown.THREAD_NAME, "R")
    waiter = threading.Thread(target=gloo_shutdown.settle, args=(tmp_path,))

    waiter.start()
    waiter.join(timeout=10 * gloo_shutdown.SAMPLE_S)
    still_waiting = waiter.is_alive()
    thread(tmp_path, 2, gloo_shutdown.THREAD_NAME, "S")
    waiter.join(timeout=gloo_shutdown.SETTLE_S)

    assert still_waiting
    assert not waiter.is_alive()


def test_other_threads_and_threads_that_have_ended_hold_nothing_up(tmp_path: Path) -> None:
    thread(tmp_path, 1, "python (main)", "R")
    (tmp_path / "2").mkdir()

    begin = time.monotonic()
    gloo_shutdown.settle(tmp_path)

    assert time.monotonic() - begin < gloo_shutdown.SETTLE_S


def test_a_system_without_proc_is_no_obstacle(tmp_path: Path) -> None:
    gloo_shutdown.settle(tmp_path / "nothing")
