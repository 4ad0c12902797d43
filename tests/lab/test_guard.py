"""Tests that the fixture `nothing_left_behind` fails tests that leak, and that tests without a lab are skipped.

In CI, tests without a lab fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.lab import LabUnavailable
from tests.lab.needs import require
from tests.lab_fixtures import unavailable

UNTIDY = """
import asyncio, subprocess, sys, threading
import tests.conftest

tests.conftest.GONE_WITHIN_S = 0.3
kept = []

def test_thread():
    stop = threading.Event()
    kept.append(stop)
    threading.Thread(target=stop.wait, args=(7,), name="forgotten").start()

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(7)"]))

def test_task():
    async def fail():
        raise ValueError("not retrieved")
    async def main():
        asyncio.ensure_future(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    asyncio.run(main())

def test_tidy():
    thread = threading.Thread(target=threading.Event().wait, args=(0.1,))
    thread.start()
    subprocess.run(["true"], check=True)

def test_end():
    kept[0].set()
    kept[1].kill()
    kept[1].wait()
"""


def test_a_test_that_leaves_something_behind_fails_and_says_what(tmp_path: Path) -> None:
    (tmp_path / "test_untidy.py").write_text(UNTIDY)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-q", "-ra", f"--rootdir={tmp_path}", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    summary = done.stdout.partition("short test summary info")[2]
    for name, left in {"thread": "thread forgotten", "child": "process ", "task": "asyncio: Task exception"}.items():
        assert f"test_{name} - Failed: This test leaves behind: {left}" in summary
    assert "5 passed, 3 errors" in summary


def test_missing_requirements_are_named() -> None:
    with pytest.raises(LabUnavailable, match=r"cannot make lab hosts; it lacks: .*/no/such/shell"):
        require("/no/such/shell")


def test_a_missing_lab_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    why = LabUnavailable("This machine cannot make lab hosts; it lacks: root.")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="lacks: root"):
        unavailable(why)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="lacks: root"):
        unavailable(why)
