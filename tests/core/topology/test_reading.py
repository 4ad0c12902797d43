"""Tests of reading topology files: values, errors with line numbers, and malicious input."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchyard_core.errors import FileProblem
from torchyard_core.topology.file import TopologyFile, read_topology, topology_from_text
from torchyard_core.yaml_io.document import parse_document
from torchyard_core.yaml_io.file_reader import MAX_BYTES, read_text

HEAD = "version: 1\nname: x\n"
TAIL = "pools: [{name: w, role: worker, replicas: 1}]\nprogram: {script: a.py}\n"


def printed(text: str) -> list[str]:
    return [problem.printed("f.yaml") for problem in topology_from_text(text, "f.yaml").problems]


def refusal(text: str) -> str:
    with pytest.raises(FileProblem) as raised:
        topology_from_text(text, "f.yaml")
    assert raised.value.exit_code == 2
    return raised.value.sentence()


# Tests of invalid values


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("replicas: two", "replicas must be a whole number from 1 to 10000, not 'two'"),
        ("replicas: 0", "replicas must be a whole number from 1 to 10000, not 0"),
        ("replicas: -3", "replicas must be a whole number from 1 to 10000, not -3"),
        ("replicas: 1.5", "replicas must be a whole number from 1 to 10000, not 1.5"),
        ("replicas: '2'", "replicas must be a whole number from 1 to 10000, not '2'"),
        ("replicas: true", "replicas must be a whole number from 1 to 10000, not true"),
        ("replicas:", "replicas must be a whole number from 1 to 10000, but is empty"),
        ("replicas: 99999999999999999999", "replicas must be a whole number from 1 to 10000, not 1e+20"),
        ("replicas: [1]", "replicas must be a whole number from 1 to 10000, not a list"),
        ("replicas: .inf", "replicas must be a whole number from 1 to 10000, not inf"),
    ],
)
def test_a_wrong_value_is_a_sentence_with_its_line(line: str, sentence: str) -> None:
    text = f"{HEAD}pools:\n  - name: w\n    role: worker\n    {line}\nprogram: {{script: a.py}}\n"
    assert printed(text) == [f"f.yaml:6: error wrong-value {sentence}"]


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("strategy: {kind: allreduce}", "not 'allreduce'; did you mean `all_reduce`?"),
        ("strategy: []", "strategy must be a block of keys, not a list"),
        ("pins: gpu-a", "pins must be a block of keys, not 'gpu-a'"),
        ("strategy: {bucket_mb: .nan}", "bucket_mb must be a whole number of at least 1, not nan"),
        ("layout: [1]", "layout must be a block of keys, not a list"),
    ],
)
def test_a_wrong_block_is_a_sentence(block: str, sentence: str) -> None:
    [line] = printed(f"{HEAD}{block}\n{TAIL}")
    assert line.startswith("f.yaml:3: error wrong-value ")
    assert line.endswith(sentence)


def test_no_sentence_is_pydantic_s() -> None:
    text = (
        "version: 2\nname: ''\nstrategy: {kind: 3, on_nan: x, reduction_order: 1, sync_every: x}\n"
        "pools: [{name: 1, role: [], replicas: {}, gpus: x, hosts: x, cpus: -1, labels: [], args: {a: b}}, 3]\n"
        "pins: {a: [1]}\nprogram: {secrets: 3, host_wait_s: soon, max_restarts: -1, gpu_ids: no}\nlayout: 4\nzzz: 1\n"
    )
    lines = printed(text)
    assert len(lines) == 21
    for word in ("Input", "should", "valid ", "ValidationError", "tuple", "dict", "str_type", "None"):
        assert not [line for line in lines if word in line], word


def test_problems_come_in_the_order_of_lines() -> None:
    lines = printed("version: 1\nname: x\nprogram: {scrip: a}\npools: [{name: w, role: w, replicas: 1}]\nfoo: 1\n")
    assert [int(line.split(":")[1]) for line in lines] == [3, 4, 5]


def test_an_empty_list_of_pools_says_what_is_needed() -> None:
    assert printed(f"{HEAD}pools: []\nprogram: {{script: a}}") == [
        "f.yaml:3: error wrong-value pools is empty; it needs at least one entry"
    ]


def test_a_missing_key_is_named_with_its_block() -> None:
    assert printed(f"{HEAD}pools:\n  - name: w\n    replicas: 1\nprogram: {{script: a}}\n") == [
        "f.yaml:4: error missing-key `role` is missing in item 1 of pools"
    ]


def test_numbers_are_taken_letter_for_letter_where_text_is_wanted() -> None:
    read = topology_from_text(
        f"{HEAD}pools: [{{name: w, role: worker, replicas: 1, labels: {{rack: 07}}}}]\n"
        "program:\n  script: a.py\n  args: [--lr, 1e-3, --size, 2.50, --on, yes]\n"
        "  env: {PORT: 0123, WHEN: 2026-11-23, DEBUG: true, TIME: 10:30}\n"
    )
    assert read.problems == ()
    assert read.topology is not None
    assert read.topology.program.args == ("--lr", "1e-3", "--size", "2.50", "--on", "yes")
    expected = {"PORT": "0123", "WHEN": "2026-11-23", "DEBUG": "true", "TIME": "10:30"}
    assert read.topology.program.env == expected
    assert read.topology.pools[0].labels == {"rack": "07"}


def test_a_key_left_empty_is_a_key_left_out() -> None:
    read = topology_from_text(f"{HEAD}strategy:\npins:\n{TAIL}")
    assert read.problems == ()
    assert read.topology is not None
    assert read.topology.pins == {}


# Tests of unknown, duplicate and merged keys


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("replcas: 1", "unknown key `replcas`; did you mean `replicas`?"),
        ("Replicas: 1", "unknown key `Replicas`; did you mean `replicas`?"),
        ("gpu-model: 1", "unknown key `gpu-model`; did you mean `gpu_model`?"),
        ("script: a.py", "unknown key `script`; it belongs under `program`"),
        ("worker_groups: 2", "unknown key `worker_groups`; it belongs under `strategy`"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(text: str, sentence: str) -> None:
    lines = printed(f"{HEAD}pools:\n  - {{name: w, role: worker, replicas: 1,\n     {text}}}\nprogram: {{script: a}}\n")
    assert lines == [f"f.yaml:5: error unknown-key {sentence}"]


def test_an_unknown_key_that_is_like_nothing_lists_what_is_known() -> None:
    [line] = printed(f"{HEAD}quux: 1\n{TAIL}")
    known = "known here: version, name, strategy, pools, pins, program, layout"
    assert line == f"f.yaml:3: error unknown-key unknown key `quux`; {known}"


def test_a_key_given_twice_is_an_error_with_both_lines() -> None:
    read = topology_from_text(f"{HEAD}{TAIL}name: y\n", "f.yaml")
    assert [problem.printed("f.yaml") for problem in read.problems] == [
        "f.yaml:5: error duplicate-key `name` is given twice, first in line 2"
    ]
    assert read.topology is None


def test_a_place_is_named_as_settings_name_it() -> None:
    read = topology_from_text(f"{HEAD}pools: [{{name: w, role: worker, replicas: x}}]\nprogram: {{script: a}}\n")
    assert read.problems[0].path == "pools.w.replicas"


def test_a_shared_block_can_be_written_once() -> None:
    read = topology_from_text(
        f"{HEAD}pools:\n  - &gpu {{name: a, role: worker, replicas: 1, gpus: 2}}\n"
        "  - {<<: *gpu, name: b}\nprogram: {script: a.py}\n"
    )
    assert read.problems == ()
    assert read.topology is not None
    assert [(pool.name, pool.gpus) for pool in read.topology.pools] == [("a", 2), ("b", 2)]


# Tests of invalid YAML


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb:\n\t- c\n", "f.yaml:3: a tab is used where YAML requires spaces. Indent with spaces only."),
        ("a: [1,\nb: 2\n", "f.yaml:1: the `[` that begins here is not closed by `]`, or lacks a comma. Close it."),
        ("a: {b: 1\n", "f.yaml:1: the `{` that begins here is not closed by `}`, or lacks a comma. Close it."),
        ("a: 1\nb: 'x\n", "f.yaml:2: the quote that begins here is never closed. Add the closing quote."),
        ("a: b: c\n", "f.yaml:1: a `:` is in a place where no key is allowed."),
        ("a:\n  b: 1\n c: 2\n", "f.yaml:3: the indentation of this line matches no line above it."),
        ("a: 1\nfoo\nb: 2\n", "f.yaml:2: a key has no `:` after it."),
        ("a: @x\n", "f.yaml:1: text cannot begin with `@`. Put the text in quotes."),
        ('a: "\\q"\n', "f.yaml:1: a backslash in double quotes begins something unknown."),
        ("a: *x\n", "f.yaml:1: the alias `*x` was not defined before."),
        ("a: &x [*x]\n", "f.yaml:1: the alias `*x` refers to itself."),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document begins here. Keep one document per file."),
        ("? [a]\n: b\n", "f.yaml:1: a list or block of keys cannot be a key."),
        ("a: !!python/object:os.system x\n", "f.yaml:1: the tag `!python/object:os.system` has no meaning here."),
        ("a: !secret x\n", "f.yaml:1: the tag `!secret` has no meaning here."),
        ("a: \x07\n", "f.yaml:1: the file holds a control character (U+0007). Remove it."),
        ("", "f.yaml: the file is empty."),
        ("# only a comment\n", "f.yaml: the file is empty."),
    ],
)
def test_yaml_that_does_not_parse_is_one_sentence_with_its_line(text: str, sentence: str) -> None:
    assert refusal(text).startswith(sentence)


@pytest.mark.parametrize(("text", "what"), [("- a\n- b\n", "a list"), ("foo\n", "'foo'"), ("42\n", "42")])
def test_a_document_that_is_no_block_of_keys_is_a_problem(text: str, what: str) -> None:
    assert printed(text) == [f"f.yaml:1: error wrong-value the document must be a block of keys, not {what}"]


# Tests of reading files that are missing, unreadable or very large


def test_a_file_s_own_folder_is_known_and_its_name_is_as_the_user_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(HEAD + TAIL)
    monkeypatch.chdir(tmp_path)
    read = read_topology("cluster.yaml")
    assert (read.source, read.folder) == ("cluster.yaml", tmp_path)


def file_refusal(path: Path) -> str:
    with pytest.raises(FileProblem) as raised:
        read_topology(path)
    return raised.value.sentence()


def test_a_missing_file_says_so_and_finds_the_other_ending(tmp_path: Path) -> None:
    assert (
        file_refusal(tmp_path / "a.yaml")
        == f"{tmp_path}/a.yaml: there is no such file. Is the name right, and are you in the right folder?"
    )
    (tmp_path / "a.yml").write_text("")
    assert file_refusal(tmp_path / "a.yaml").endswith(f"Did you mean {tmp_path}/a.yml?")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert file_refusal(tmp_path) == f"{tmp_path}: this is a folder. Name the YAML file in it."


def test_a_path_through_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert "part of this path is a file" in file_refusal(tmp_path / "a" / "b.yaml")


def test_a_name_that_no_file_can_have_is_explained(tmp_path: Path) -> None:
    assert "cannot be read" in file_refusal(tmp_path / ("x" * 300))
    assert "cannot be read" in file_refusal(tmp_path / "a\0b")


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Drops root's privileges for the duration of a test."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_a_file_without_read_permission_is_an_error(tmp_path: Path, unprivileged: None) -> None:
    folder = tmp_path if os.access(tmp_path, os.X_OK, effective_ids=True) else Path("/etc")
    path = folder / "a.yaml" if folder == tmp_path else folder / "shadow"
    if folder == tmp_path:
        path.write_text("x")
        path.chmod(0)
    assert file_refusal(path) == f"{path}: you are not allowed to read this file. Change its permissions, or copy it."


def test_text_that_is_not_utf_8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"version: 1\nname: caf\xe9\n")
    assert file_refusal(tmp_path / "a.yaml").endswith("a.yaml:2: byte 0xe9 is not UTF-8 text. Save the file as UTF-8.")
    (tmp_path / "b.yaml").write_bytes("name: x".encode("utf-16"))
    assert "UTF-16" in file_refusal(tmp_path / "b.yaml")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(HEAD + TAIL, encoding="utf-8-sig")
    assert read_topology(tmp_path / "a.yaml").problems == ()


def test_windows_line_ends_count_as_lines() -> None:
    assert printed((HEAD + "foo: 1\n" + TAIL).replace("\n", "\r\n"))[0].startswith("f.yaml:3:")


def test_a_file_of_50_mb_and_an_endless_one_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.truncate(50 * 2**20)
    began = time.process_time()
    assert "over the limit of 4 MB" in file_refusal(path)
    assert "over the limit of 4 MB" in file_refusal(Path("/dev/zero"))
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
            id="a bomb of aliases",
        ),
        pytest.param("[" * (MAX_BYTES - 1), id="four million brackets"),
        pytest.param("{a: " * 100_000, id="nested blocks"),
        pytest.param("".join(" " * depth + "a:\n" for depth in range(2_000)), id="nested by indentation"),
        pytest.param("a: [" + "x," * 1_900_000 + "]", id="two million values"),
        pytest.param("- " * 200_000, id="lists in lists"),
    ],
)
def test_a_document_made_to_exhaust_us_is_refused_in_seconds_of_cpu(text: str) -> None:
    began = time.process_time()
    assert "document" in refusal(text)
    assert time.process_time() - began < 10


def test_a_large_but_honest_file_is_read() -> None:
    pools = "".join(f"  - {{name: w{i}, role: worker, replicas: 1, gpus: 1}}\n" for i in range(5_000))
    read: TopologyFile = topology_from_text(f"{HEAD}pools:\n{pools}program: {{script: a}}\n")
    assert read.problems == ()
    assert read.line(("pools", 4_000)) == 4_004


def test_every_value_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a:\n  - b: 1\n    c: [2,\n        3]\n# comment\nd: |\n  text\n")
    document = parse_document(read_text(path), "a")
    assert [document.line(place) for place in ((), ("a",), ("a", 0, "c", 1), ("d",), ("d", "nowhere"))] == [
        1,
        1,
        4,
        6,
        6,
    ]
