"""Tests of cached hashes of files: an unchanged file is not read again, but a changed file always is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Event

import pytest

from tests.waiting import wait_until
from torchyard_core.launch.snapshots.snapshot import Snapshot, list_folder, take_snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    for name in ("a.py", "b.py"):
        (place / name).write_text(name)
    return place


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder for cached hashes. Hashes of recently written files are trusted, too."""
    monkeypatch.setattr("torchyard_core.launch.snapshots.file_hash_cache.RACY_NS", -3600 * 10**9)
    return tmp_path / "caches"


def read_anew(folder: Path, caches: Path) -> list[str]:
    """Returns the files that a new snapshot would have to read."""
    listing = list_folder(folder, (), Event(), caches)
    return sorted(path for path, status in listing.found if status is not None and path not in listing.known)


def taken(folder: Path, caches: Path) -> Snapshot:
    return take_snapshot(folder, (), None, caches)


def test_an_unchanged_file_is_not_read_again(folder: Path, caches: Path) -> None:
    assert read_anew(folder, caches) == ["a.py", "b.py"]
    first = taken(folder, caches)

    assert read_anew(folder, caches) == []
    assert taken(folder, caches) == first


def test_a_changed_file_is_read_again_even_with_its_old_size_and_time(folder: Path, caches: Path) -> None:
    before = taken(folder, caches)
    status = (folder / "a.py").stat()
    (folder / "a.py").write_text("A.PY")
    os.utime(folder / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))

    assert read_anew(folder, caches) == ["a.py"]
    assert taken(folder, caches).root != before.root


def test_a_file_written_a_moment_ago_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    taken(folder, caches)

    assert read_anew(folder, caches) == ["a.py", "b.py"]
    # The files are read again, but need no new confirmation.
    assert list_folder(folder, (), Event(), caches).unseen == {}
    (folder / "a.py").write_text("changed")
    assert list(list_folder(folder, (), Event(), caches).unseen) == ["a.py"]


def test_files_that_are_old_enough_are_trusted_by_the_real_rule(folder: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    wait_until(lambda: not read_anew(folder, caches), pause=lambda _: taken(folder, caches))


def test_folders_do_not_share_their_hashes(folder: Path, caches: Path, tmp_path: Path) -> None:
    taken(folder, caches)
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("a.py")

    assert read_anew(other, caches) == ["a.py"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1, "files": {"a.py": [1]}}', '{"version": 2, "files": {}}', "\xff"]
)
def test_a_damaged_cache_is_none(folder: Path, caches: Path, text: str) -> None:
    taken(folder, caches)
    [file] = caches.iterdir()
    file.write_text(text)

    assert read_anew(folder, caches) == ["a.py", "b.py"]
    taken(folder, caches)
    assert json.loads(file.read_text())["version"] == 1


def test_a_cache_that_cannot_be_written_stops_nothing(folder: Path, caches: Path) -> None:
    caches.write_text("a file where a folder should be")

    assert len(taken(folder, caches).manifest) == 2
