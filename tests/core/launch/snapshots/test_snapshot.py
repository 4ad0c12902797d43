"""Tests of which files of a working folder a snapshot contains, and of the snapshot's root hash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchyard_core.errors import RunFailed
from torchyard_core.launch.snapshots.snapshot import take_snapshot


def make(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sent(folder: Path, *exclude: str) -> list[str]:
    return [entry["path"] for entry in take_snapshot(folder, exclude).manifest]


def test_git_ignore_files_and_exclude_are_honoured(tmp_path: Path) -> None:
    make(
        tmp_path, train_py="", notes_log="", data__big_bin="", sub__keep_log="", sub__drop_log="", _gitignore="*.log\n"
    )
    (tmp_path / "sub" / ".gitignore").write_text("!keep.log\n")

    assert sent(tmp_path, "data/") == [".gitignore", "sub/.gitignore", "sub/keep.log", "train.py"]


def test_what_no_run_needs_is_never_sent(tmp_path: Path) -> None:
    make(tmp_path, train_py="", __git__config="", __venv__x_py="", __pycache__="")
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / ".git" / "HEAD").write_text("")
    (tmp_path / "a" / "__pycache__").mkdir(parents=True)
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("")

    assert not [path for path in sent(tmp_path) if ".git/" in path or "pyc" in path]


def test_the_root_names_the_content_and_not_the_time(tmp_path: Path) -> None:
    make(tmp_path, a_py="one", b_py="two")
    before = take_snapshot(tmp_path).root
    os.utime(tmp_path / "a.py", (1, 1))
    assert take_snapshot(tmp_path).root == before

    (tmp_path / "a.py").chmod(0o755)
    changed_mode = take_snapshot(tmp_path).root
    (tmp_path / "b.py").write_text("three")
    assert len({before, changed_mode, take_snapshot(tmp_path).root}) == 3


def test_links_stay_links_and_never_lead_the_reader_in_circles(tmp_path: Path) -> None:
    make(tmp_path, a_py="")
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "loop").symlink_to(tmp_path)

    links = {entry["path"]: entry["link"] for entry in take_snapshot(tmp_path).manifest if "link" in entry}

    assert links == {"link.py": "a.py", "loop": str(tmp_path)}


def test_an_empty_folder_is_sent_as_such(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "deep" / "below").mkdir(parents=True)

    assert take_snapshot(tmp_path).manifest == [
        {"path": "checkpoints", "folder": True},
        {"path": "deep/below", "folder": True},
    ]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"No such file or directory: .*missing"):
        take_snapshot(tmp_path / "missing")


def test_a_pattern_that_means_nothing_costs_no_other(tmp_path: Path) -> None:
    make(tmp_path, train_py="", notes_log="", _gitignore="!\n[z-a]\n*.log\nnotes\\\n")

    assert sent(tmp_path) == [".gitignore", "train.py"]
