"""Tests of storing notes and tags of runs in a file, without overwriting foreign files or entries of newer versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchyard_core.errors import FileProblem, UsageError
from torchyard_core.launch.runs.annotations import Annotation, Annotations, tags_from_text


def test_notes_and_tags_are_kept_by_run(tmp_path: Path) -> None:
    file = tmp_path / "home" / "run-notes.json"
    notes = Annotations(file)
    assert notes.load() == {}
    first, second = Annotation("learning rate halved", ("baseline", "lr-3")), Annotation(tags=("baseline",))
    notes.set("a", first)
    Annotations(file).set("b", second)  # Writes to the file as another window would.
    assert notes.load() == {"a": first, "b": second}
    notes.set("a", Annotation())
    assert notes.load() == {"b": second}
    assert first.text == "#baseline #lr-3 learning rate halved"


def test_tags_are_read_from_text() -> None:
    assert tags_from_text(" baseline, #lr-3;baseline  ÄÖ ") == ("baseline", "lr-3", "ÄÖ")
    assert tags_from_text(" # , ") == ()
    with pytest.raises(UsageError, match="has 41 letters"):
        tags_from_text("x" * 41)
    with pytest.raises(UsageError, match="at most 10,000"):
        Annotations(Path("unused")).set("a", Annotation("x" * 10_001))


@pytest.mark.parametrize("text", ["[]", "{", "3", ""])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run-notes.json"
    file.write_text(text)
    assert Annotations(file).load() == {}
    with pytest.raises(FileProblem, match="holds no notes of runs"):
        Annotations(file).set("a", Annotation("kept"))
    assert file.read_text() == text


def test_annotations_of_a_newer_version_stay(tmp_path: Path) -> None:
    file = tmp_path / "run-notes.json"
    newer = {"a": {"note": 3, "stars": 5}, "b": {"note": "kept", "tags": ["x", 4]}}
    file.write_text(json.dumps(newer))
    notes = Annotations(file)
    assert notes.load() == {"b": Annotation("kept", ("x",))}
    notes.set("c", Annotation("new"))
    assert json.loads(file.read_text()) == {**newer, "c": {"note": "new", "tags": []}}
