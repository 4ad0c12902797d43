"""Tests of a host's snapshot store, and of the working folders that are created from it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from torchyard_agent import snapshot_store
from torchyard_agent.protocol.snapshot_manifest import Entry, root_of
from torchyard_agent.snapshot_store import Incoming, SnapshotProblem


def entry(path: str, data: bytes, mode: int = 0o644) -> Entry:
    return {"path": path, "mode": mode, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def put(store: Path, data: bytes) -> None:
    Incoming(str(store), "me").put(hashlib.sha256(data).hexdigest(), data, last=True)


def test_a_sealed_snapshot_becomes_a_runs_own_copy(tmp_path: Path) -> None:
    manifest = [entry("train.py", b"print()"), entry("bin/go.sh", b"exit", 0o755), {"path": "latest", "link": "bin"}]
    manifest.append({"path": "checkpoints", "folder": True})
    assert len(snapshot_store.missing(str(tmp_path), manifest)) == 2
    put(tmp_path, b"print()")
    put(tmp_path, b"exit")

    root = snapshot_store.seal(str(tmp_path), manifest)
    for name in ("one", "two"):
        snapshot_store.materialize(str(tmp_path), root, str(tmp_path / name))

    assert root == root_of(list(reversed(manifest)))
    assert (tmp_path / "one" / "bin" / "go.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "one" / "latest").is_symlink()
    assert (tmp_path / "one" / "checkpoints").is_dir()
    (tmp_path / "one" / "train.py").write_text("changed by the run")
    assert (tmp_path / "two" / "train.py").read_text() == "print()"
    assert snapshot_store.missing(str(tmp_path), manifest) == []


def test_a_damaged_file_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SnapshotProblem, match="damaged"):
        Incoming(str(tmp_path), "me").put("0" * 64, b"data", last=True)
    assert not list(tmp_path.rglob("*.part"))


def test_pieces_of_two_senders_never_mix(tmp_path: Path) -> None:
    data = b"first half, second half"
    sha256 = hashlib.sha256(data).hexdigest()
    one, two = Incoming(str(tmp_path), "one"), Incoming(str(tmp_path), "two")
    one.put(sha256, data[:10], last=False)
    two.put(sha256, data[:10], last=False)
    two.put(sha256, data[10:], last=True)

    one.discard()

    assert snapshot_store.missing(str(tmp_path), [entry("a", data)]) == []
    assert not list(tmp_path.rglob("*.part"))


def test_a_snapshot_is_not_sealed_before_its_files_are_there(tmp_path: Path) -> None:
    with pytest.raises(SnapshotProblem, match="not all files"):
        snapshot_store.seal(str(tmp_path), [entry("a", b"1")])


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a/../../escape"])
def test_no_path_leads_out_of_the_working_folder(tmp_path: Path, path: str) -> None:
    put(tmp_path, b"1")
    root = snapshot_store.seal(str(tmp_path), [entry(path, b"1")])

    with pytest.raises(SnapshotProblem, match="leads out"):
        snapshot_store.materialize(str(tmp_path), root, str(tmp_path / "work"))


def test_pieces_after_the_end_of_a_sender_are_ignored(tmp_path: Path) -> None:
    gone = Incoming(str(tmp_path), "gone")
    gone.discard()
    gone.put(hashlib.sha256(b"late").hexdigest(), b"late", last=True)

    assert not list(tmp_path.rglob("*"))


def test_a_file_that_the_store_has_lost_is_requested_again(tmp_path: Path) -> None:
    manifest = [entry("a", b"whole"), entry("b", b"x" * 3_000_000)]
    for data in (b"whole", b"x" * 3_000_000):
        put(tmp_path, data)
    root = snapshot_store.seal(str(tmp_path), manifest)
    Path(snapshot_store.blob(str(tmp_path), manifest[1]["sha256"])).write_bytes(b"x" * 10)

    with pytest.raises(SnapshotProblem, match="b was lost"):
        snapshot_store.materialize(str(tmp_path), root, str(tmp_path / "work"))

    assert not snapshot_store.has(str(tmp_path), root)
    assert snapshot_store.missing(str(tmp_path), manifest) == [manifest[1]["sha256"]]


def test_an_empty_manifest_is_requested_again(tmp_path: Path) -> None:
    put(tmp_path, b"1")
    root = snapshot_store.seal(str(tmp_path), [entry("a", b"1")])
    [manifest] = tmp_path.rglob(snapshot_store.MANIFEST)
    for damaged in ("", '{"a": 1}'):
        manifest.write_text(damaged)

        with pytest.raises(SnapshotProblem, match="is not on this host"):
            snapshot_store.materialize(str(tmp_path), root, str(tmp_path / "work"))

        assert not snapshot_store.has(str(tmp_path), root)


def test_a_large_file_is_copied_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    put(tmp_path, data)
    root = snapshot_store.seal(str(tmp_path), [entry("large", data, 0o755)])

    snapshot_store.materialize(str(tmp_path), root, str(tmp_path / "work"))

    assert (tmp_path / "work" / "large").read_bytes() == data
    assert (tmp_path / "work" / "large").stat().st_mode & 0o777 == 0o755
