from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard_core.errors import FileProblem
from torchyard_core.topology.document.crash_recovery import Recovery

WRITES_AND_DIES = """
import os, sys
from pathlib import Path
from torchyard_core.topology.document.crash_recovery import Recovery
Recovery(Path(sys.argv[1])).write(Path("/somewhere/a.yaml"), "name: half done é")
os._exit(9)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recovery"


def write_and_die(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", WRITES_AND_DIES, str(folder)], check=False)
    assert ended.returncode == 9


def test_the_work_of_a_program_that_died_is_found_until_it_is_discarded(folder: Path) -> None:
    write_and_die(folder)
    recovery = Recovery(folder)
    (work,) = recovery.unsaved_work()
    assert (work.path, work.text) == (Path("/somewhere/a.yaml"), "name: half done é")
    recovery.discard(work)
    assert recovery.unsaved_work() == []
    assert list(folder.iterdir()) == []


def test_the_work_of_a_program_that_lives_is_its_own(folder: Path) -> None:
    mine = Recovery(folder)
    mine.write(None, "name: mine")
    assert Recovery(folder).unsaved_work() == []
    assert mine.unsaved_work() == []
    (lock,) = folder.glob("*.lock")
    assert lock.read_text().strip() == str(os.getpid())
    mine.clear()


def test_saved_work_leaves_nothing(folder: Path) -> None:
    mine = Recovery(folder)
    mine.write(None, "one")
    mine.write(None, "two")
    mine.clear()
    mine.clear()
    assert list(folder.iterdir()) == []
    mine.write(None, "three")  # A document can be written again after `clear`.
    mine.clear()


def test_what_cannot_be_read_is_not_offered(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.json").write_text("{half")
    (folder / "b.json").write_text('{"path": null}')
    assert Recovery(folder).unsaved_work() == []


def test_no_folder_is_no_work(folder: Path) -> None:
    assert Recovery(folder).unsaved_work() == []


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot be written"):
        Recovery(tmp_path / "file" / "recovery").write(None, "x")
