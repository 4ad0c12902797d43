"""Tests of the garbage collection of snapshots."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from torchyard_agent import snapshot_store
from torchyard_agent.daemon import garbage_collection
from torchyard_agent.daemon.garbage_collection import prune

DAY = 86400.0


@pytest.fixture(autouse=True)
def _roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "SHORT_SHARE", 0.0)


def snapshot(store: Path, *contents: str, used_days_ago: float = 0.0) -> str:
    """Creates a sealed snapshot of files with the given contents, last used `used_days_ago` days ago."""
    manifest = []
    for number, content in enumerate(contents):
        data = content.encode()
        sha256 = hashlib.sha256(data).hexdigest()
        snapshot_store.Incoming(str(store), "test").put(sha256, data, last=True)
        manifest.append({"path": f"{number}.py", "mode": 0o644, "size": len(data), "sha256": sha256})
    root = snapshot_store.seal(str(store), manifest)
    then = time.time() - used_days_ago * DAY
    for entry in manifest:
        os.utime(snapshot_store.blob(str(store), str(entry["sha256"])), (then, then))
    os.utime(store / "store" / "snapshots" / root / "manifest.json", (then, then))
    return root


def a_run_of(store: Path, host: str, root: str) -> None:
    folder = store / "hosts" / host / "runs" / f"run-{root[:8]}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"snapshot": root}))


def left(store: Path) -> tuple[set[str], set[str]]:
    """Returns the snapshots and the contents of all files that remain in the store."""
    files = [path for path in (store / "store" / "files").rglob("*") if path.is_file()]
    return {path.name for path in (store / "store" / "snapshots").iterdir()}, {path.read_text() for path in files}


def test_snapshots_unused_for_a_week_are_removed_with_their_own_files(tmp_path: Path) -> None:
    old = snapshot(tmp_path, "shared", "old", used_days_ago=8)
    new = snapshot(tmp_path, "shared", "new", used_days_ago=6)

    assert prune(str(tmp_path)) == 1

    roots, contents = left(tmp_path)
    assert roots == {new}
    assert old not in roots
    assert contents == {"shared", "new"}


def test_snapshots_of_runs_of_all_hosts_are_kept(tmp_path: Path) -> None:
    here, there, gone = (snapshot(tmp_path, name, used_days_ago=99) for name in ("here", "there", "gone"))
    a_run_of(tmp_path, "gpu-a", here)
    a_run_of(tmp_path, "gpu-b", there)

    assert prune(str(tmp_path)) == 1

    assert left(tmp_path) == ({here, there}, {"here", "there"})
    assert not (tmp_path / "store" / "snapshots" / gone).exists()


def test_on_a_nearly_full_disk_snapshots_are_kept_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "SHORT_SHARE", 1.1)
    snapshot(tmp_path, "two days", used_days_ago=2)
    today = snapshot(tmp_path, "today", used_days_ago=0.5)

    prune(str(tmp_path))

    assert left(tmp_path) == ({today}, {"today"})


def test_an_offer_counts_as_use(tmp_path: Path) -> None:
    root = snapshot(tmp_path, "offered", used_days_ago=30)
    assert snapshot_store.has(str(tmp_path), root)

    assert prune(str(tmp_path)) == 0


def test_files_of_uploads_are_kept_for_a_day(tmp_path: Path) -> None:
    snapshot(tmp_path, "kept")
    for content, age in (("arriving", 0.1), ("forgotten", 3.0)):
        data = content.encode()
        sha256 = hashlib.sha256(data).hexdigest()
        snapshot_store.Incoming(str(tmp_path), "test").put(sha256, data, last=True)
        then = time.time() - age * DAY
        os.utime(snapshot_store.blob(str(tmp_path), sha256), (then, then))

    prune(str(tmp_path))

    assert left(tmp_path)[1] == {"kept", "arriving"}


def test_a_manifest_that_cannot_be_read_keeps_all_files(tmp_path: Path) -> None:
    root = snapshot(tmp_path, "precious", used_days_ago=3)
    (tmp_path / "store" / "snapshots" / root / "manifest.json").write_text("{")

    prune(str(tmp_path))

    assert left(tmp_path)[1] == {"precious"}


def test_a_missing_store_is_no_error(tmp_path: Path) -> None:
    assert prune(str(tmp_path / "nothing")) == 0
