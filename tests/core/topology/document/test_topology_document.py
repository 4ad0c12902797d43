from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.examples import EVERY_KEY
from torchyard_core.errors import FileProblem
from torchyard_core.topology.document.edits import (
    add_replicas,
    remove_replicas,
    set_name,
    set_pools,
    set_program,
    set_strategy,
)
from torchyard_core.topology.document.topology_document import TopologyDocument
from torchyard_core.topology.document.typed_text import BOM, shown_text, typed_over
from torchyard_core.topology.file import read_topology
from torchyard_core.topology.model import Role

WITH_COMMENTS = """\
# What this is for.
version: 1
name: digits   # a short name

# In step.
strategy:
  kind: all_reduce
pools:
  # The first of all.
  - {name: chief, role: chief, replicas: 1}
  - {name: workers, role: worker, replicas: 2}   # on the small hosts

# What runs.
program:
  script: train.py   # beside this file
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yaml"
    path.write_text(WITH_COMMENTS)
    return path


@pytest.fixture
def document(file: Path) -> TopologyDocument:
    document = TopologyDocument()
    document.open(file)
    return document


# Tests of opening a file, valid or not


def test_a_new_document_is_empty_and_has_nothing_to_save() -> None:
    document = TopologyDocument()
    assert (document.name, document.path, document.is_modified) == ("untitled", None, False)
    assert document.value.pools == ()
    assert [problem.code for problem in document.as_file().check()] == ["no-trainers", "no-program"]


def test_a_file_opens_with_its_own_text(document: TopologyDocument) -> None:
    assert document.text == WITH_COMMENTS
    assert not document.is_modified


def test_text_that_is_no_topology_opens_with_its_problems(file: Path) -> None:
    file.write_text(WITH_COMMENTS.replace("replicas: 2", "replica: 2"))
    document = TopologyDocument()
    document.open(file)
    # The missing key `replicas` is not reported, because the unknown key `replica` explains it.
    assert [(problem.code, problem.line) for problem in document.problems] == [("unknown-key", 11)]
    assert "replica: 2" in document.text
    with pytest.raises(FileProblem):
        document.replace(set_name(document.value, "x"))
    with pytest.raises(FileProblem):
        document.save()
    file.write_text(WITH_COMMENTS)
    document.reload()
    assert document.problems == ()
    assert len(document.value.pools) == 2


def test_text_that_is_no_yaml_opens_with_the_line_of_its_problem(file: Path) -> None:
    file.write_text("version: 1\nname: [a\npools: []\n")
    document = TopologyDocument()
    document.open(file)
    (problem,) = document.problems
    assert problem.line == 2
    assert problem.message.startswith("the `[` that begins here")


def test_a_file_that_is_not_there_leaves_the_document_as_it_was(document: TopologyDocument, tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no such file"):
        document.open(tmp_path / "other.yaml")
    assert document.name == "digits.yaml"


def test_signals_tell_of_values_and_files(document: TopologyDocument, file: Path) -> None:
    emitted: list[str] = []
    document.changed.connect(lambda: emitted.append("changed"))
    document.path_changed.connect(lambda: emitted.append("path"))
    document.replace(set_name(document.value, "other"))
    document.save()
    document.open(file)
    assert emitted == ["changed", "path", "path", "changed"]


# Tests that edits keep the unchanged text


def test_what_did_not_change_keeps_its_letters_and_comments(document: TopologyDocument) -> None:
    grown, _ = add_replicas(document.value, Role.WORKER)
    document.replace(grown)
    assert document.text == WITH_COMMENTS.replace("role: worker, replicas: 2}", "role: worker, replicas: 3}")


def test_back_at_the_first_value_the_text_is_the_first_text_again(document: TopologyDocument, file: Path) -> None:
    first = document.value
    document.replace(remove_replicas(first, ["chief-0"]))
    document.save()
    document.replace(set_strategy(first, kind="all_reduce"))
    assert document.text == WITH_COMMENTS
    assert document.is_modified
    document.save()
    assert file.read_text() == WITH_COMMENTS


@pytest.mark.parametrize(
    "text",
    [
        EVERY_KEY,
        WITH_COMMENTS.replace("\n", "\r\n"),
        "\ufeff" + WITH_COMMENTS,
        WITH_COMMENTS.rstrip("\n"),
        "{version: 1, name: a, pools: [{name: workers, role: worker, replicas: 2}], program: {script: t.py}}",
        "version: 1\nname: a\npools:\n- name: workers\n  role: worker\n  replicas: 2\n\n# end\nprogram: {}\n",
        "version: 1\nname: a\npools: &p [{name: workers, role: worker, replicas: 2}]\nlayout: {x: *p}\nprogram: {}\n",
    ],
)
def test_every_edit_reads_back_as_what_was_meant(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode())
    document = TopologyDocument()
    document.open(path)
    first = document.value
    edits = [
        add_replicas(first, Role.WORKER, 3)[0],
        add_replicas(first, Role.REDUCER)[0],
        remove_replicas(first, ["worker-0"]),
        set_pools(first, [0], env={"A": "1", "B": "no"}),
        set_name(first, "yes: no # é"),
        set_program(first, args=["--x", "0x1f"]),
        set_strategy(first, kind="none", bucket_mb=1),
    ]
    for value in edits:
        document.replace(value)
        document.save()
        assert read_topology(path).topology == value
    document.replace(first)
    document.save()
    assert path.read_bytes() == text.encode()


def test_a_draft_without_pools_can_be_saved_and_opened(tmp_path: Path) -> None:
    document = TopologyDocument()
    document.replace(set_program(document.value, script="train.py", args=["1"]))
    document.save(tmp_path / "draft.yaml")
    again = TopologyDocument()
    again.open(tmp_path / "draft.yaml")
    assert again.problems == ()
    assert again.value == document.value


# Tests of text that the user types in the editor


def shown_with(document: TopologyDocument, old: str, new: str) -> str:
    assert old in document.shown_text
    return document.shown_text.replace(old, new)


def test_typed_text_is_the_text_that_later_edits_change(document: TopologyDocument, file: Path) -> None:
    typed = shown_with(document, "# beside this file", "# my own words")
    document.restore(document.with_shown_text(typed))
    assert document.is_modified
    assert document.text == typed
    grown, _ = add_replicas(document.value, Role.WORKER)
    document.replace(grown)
    assert document.text == typed.replace("role: worker, replicas: 2}", "role: worker, replicas: 3}")
    document.replace(remove_replicas(grown, ["worker-2"]))
    assert document.text == typed
    document.save()
    assert not document.is_modified
    assert file.read_text() == typed


def test_an_invalid_text_leaves_the_value_and_is_not_saved(document: TopologyDocument, file: Path) -> None:
    before = document.state
    document.restore(document.with_shown_text(shown_with(document, "replicas: 2", "replicas: two")))
    assert document.value == before.value
    assert [(problem.code, problem.line) for problem in document.problems] == [("wrong-value", 11)]
    assert document.is_modified
    for refused in (lambda: document.replace(set_name(document.value, "x")), document.save):
        with pytest.raises(FileProblem, match="line 11 of the text has an error: replicas must be"):
            refused()
    assert file.read_text() == WITH_COMMENTS
    document.restore(document.with_shown_text(shown_with(document, "replicas: two", "replicas: 5")))
    assert document.problems == ()
    assert document.value.pools[1].replicas == 5
    document.restore(before)
    assert (document.text, document.is_modified) == (WITH_COMMENTS, False)


def test_an_invalid_file_is_corrected_by_typing(file: Path) -> None:
    file.write_text(WITH_COMMENTS.replace("replicas: 2", "replica: 2"))
    document = TopologyDocument()
    document.open(file)
    assert not document.is_modified
    document.restore(document.with_shown_text(WITH_COMMENTS))
    assert document.is_modified
    document.save()
    assert file.read_text() == WITH_COMMENTS


def test_a_comment_typed_into_a_new_document_is_unsaved_work() -> None:
    document = TopologyDocument()
    document.restore(document.with_shown_text("# soon\n" + document.shown_text))
    assert document.value.pools == ()
    assert document.is_modified


MIXED = BOM + "# a\u00a0b\r\nversion: 1\r\nname: a # x\n\npools: []\rprogram: {}\r\n# last"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: a", "name: b", MIXED.replace("name: a # x\n", "name: b # x\r\n")),
        ("# last", "# last\n# more\n", MIXED + "\r\n# more\r\n"),
        ("\n\npools", "\npools", MIXED.replace("\n\npools", "\npools")),
        ("# a\u00a0b\n", "", MIXED.replace("# a\u00a0b\r\n", "")),
        ("version", "version", MIXED),
    ],
)
def test_lines_that_were_not_typed_keep_their_bytes(old: str, new: str, expected: str) -> None:
    shown = shown_text(MIXED)
    assert shown.count("\n") == 6
    assert old in shown
    assert typed_over(MIXED, shown.replace(old, new)) == expected


@given(st.text("ab\n\r", max_size=12), st.text("ab\n", max_size=12))
def test_typed_text_is_shown_as_it_was_typed(text: str, typed: str) -> None:
    assert shown_text(typed_over(text, typed)) == typed
    assert typed_over(text, shown_text(text)) == text


# Tests of saving to a file


def test_saving_writes_what_it_shows(document: TopologyDocument, file: Path) -> None:
    document.replace(set_name(document.value, "other"))
    assert document.is_modified
    document.save()
    assert not document.is_modified
    assert file.read_text() == document.text
    assert "# beside this file" in document.text


def test_saving_under_another_name_leaves_the_first_file(
    document: TopologyDocument, file: Path, tmp_path: Path
) -> None:
    document.replace(set_name(document.value, "other"))
    document.save(tmp_path / "second.yaml")
    assert document.name == "second.yaml"
    assert file.read_text() == WITH_COMMENTS


def test_a_document_without_a_file_wants_a_name() -> None:
    with pytest.raises(FileProblem) as problem:
        TopologyDocument().save()
    assert problem.value.code == "no_file"


def test_a_file_that_changed_on_disk_is_not_overwritten(document: TopologyDocument, file: Path) -> None:
    file.write_text(WITH_COMMENTS + "# theirs\n")
    document.replace(set_name(document.value, "mine"))
    assert document.disk_state() == "changed"
    with pytest.raises(FileProblem) as problem:
        document.save()
    assert problem.value.code == "changed_on_disk"
    assert "# theirs" in file.read_text()
    document.keep_mine()
    assert document.is_modified
    document.save()
    assert "name: mine" in file.read_text()


def test_a_file_that_is_gone_is_written_anew(document: TopologyDocument, file: Path) -> None:
    file.unlink()
    assert document.disk_state() == "gone"
    document.save()
    assert file.read_text() == WITH_COMMENTS


def test_a_read_only_file_is_left_alone_even_by_root(document: TopologyDocument, file: Path) -> None:
    file.chmod(0o444)
    document.replace(set_name(document.value, "mine"))
    assert document.is_read_only
    with pytest.raises(FileProblem, match="read-only") as problem:
        document.save()
    assert problem.value.code == "read_only_file"
    assert file.read_text() == WITH_COMMENTS
    document.save(file.with_name("mine.yaml"))
    assert not document.is_read_only


def test_problems_have_the_lines_of_the_current_text(document: TopologyDocument) -> None:
    document.replace(set_pools(document.value, [0], env={"RANK": "1"}))
    line = next(problem.line for problem in document.as_file().check() if problem.code == "reserved-variable")
    assert line is not None
    assert "RANK" in document.text.splitlines()[line - 1]
