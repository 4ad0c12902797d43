"""Tests of the locks that uploads hold in a shared store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchyard_agent.daemon import upload_locks
from torchyard_agent.daemon.upload_locks import UploadLocks

ROOT = "a" * 64


@pytest.fixture
def a(tmp_path: Path) -> UploadLocks:
    return UploadLocks(str(tmp_path), "gpu-a")


@pytest.fixture
def b(tmp_path: Path) -> UploadLocks:
    return UploadLocks(str(tmp_path), "gpu-b")


def test_one_host_uploads_while_the_other_waits(a: UploadLocks, b: UploadLocks) -> None:
    assert a.take(ROOT, "desktop")
    assert a.take(ROOT, "desktop")
    assert not b.take(ROOT, "desktop")
    assert b.is_locked(ROOT, "desktop")
    assert not a.is_locked(ROOT, "desktop")

    a.release("desktop", ROOT)

    assert not b.is_locked(ROOT, "desktop")
    assert b.take(ROOT, "desktop")


def test_desktops_on_one_host_take_turns(a: UploadLocks) -> None:
    assert a.take(ROOT, "one")
    assert not a.take(ROOT, "two")
    a.release("one")
    assert a.take(ROOT, "two")


def test_other_snapshots_are_not_locked(a: UploadLocks, b: UploadLocks) -> None:
    assert a.take(ROOT, "desktop")
    assert b.take("b" * 64, "desktop")
    assert a.are_held()


def test_a_lock_that_is_not_touched_becomes_stale(
    a: UploadLocks, b: UploadLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("torchyard_agent.daemon.upload_locks.time.monotonic", lambda: now[0])
    assert a.take(ROOT, "desktop")
    assert not b.take(ROOT, "desktop")
    now[0] += upload_locks.STALE_AFTER_S + 1

    time.sleep(0.01)  # File times have a resolution of a few milliseconds.
    a.touch()
    assert not b.take(ROOT, "desktop")  # The holder renews the lock, so it is considered alive.

    now[0] += upload_locks.STALE_AFTER_S + 1
    assert b.take(ROOT, "desktop")


def test_the_lock_of_a_dead_daemon_of_this_host_is_free_at_once(tmp_path: Path, a: UploadLocks) -> None:
    dying = """
import sys
from torchyard_agent.daemon.upload_locks import UploadLocks
assert UploadLocks(*sys.argv[1:3]).take(sys.argv[3], "desktop")
"""
    agent = str(Path(upload_locks.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", dying, str(tmp_path), "gpu-a", ROOT],
        env={**os.environ, "PYTHONPATH": agent},
        check=False,
    )
    assert done.returncode == 0

    assert a.take(ROOT, "desktop")
