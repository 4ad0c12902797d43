"""Tests of the files of a working folder that count as its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.advisor.samples import profile
from torchyard_core.launch.snapshots.program_files import code_root
from torchyard_core.launch.snapshots.snapshot import take_snapshot
from torchyard_core.topology.file import topology_from_text

TOPOLOGY = """\
version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 1}]
program: {script: train.py, args: [--epochs, "2"]}
"""
SEARCH = """\
version: 1
parameters: {lr: {distribution: uniform, low: 0, high: 1}}
objective: {metric: loss, goal: minimize}
trials: 3
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "config.yaml").write_text("version: 1\nparameters: {depth: 4}\n")
    (tmp_path / "data.json").write_text("{}")
    return tmp_path


def code(work: Path, topology: str = TOPOLOGY) -> str:
    read = topology_from_text(topology).topology
    assert read is not None
    return code_root(take_snapshot(work), read)


def test_a_folder_without_documents_is_identified_by_its_snapshot(work: Path) -> None:
    assert code(work) == take_snapshot(work).root


@pytest.mark.parametrize(
    ("name", "text"),
    [("topology.yaml", TOPOLOGY), ("search.yml", SEARCH), ("profiles/one.json", profile().as_text())],
)
def test_topologies_searches_and_profiles_do_not_count(work: Path, name: str, text: str) -> None:
    (work / "profiles").mkdir()
    before = code(work)
    (work / name).write_text(text)
    assert take_snapshot(work).root != before
    assert code(work) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.py", ""),
        ("config.yaml", "version: 1\nparameters: {depth: 5}\n"),
        ("data.json", "[]"),
        ("broken.yaml", TOPOLOGY.replace("replicas: 1", "replicas: -1")),
        ("topology.txt", TOPOLOGY),
        ("profile.json", profile().as_text().replace('"batch": 32', '"batch": "many"')),
    ],
)
def test_every_other_file_counts(work: Path, name: str, text: str) -> None:
    before = code(work)
    (work / name).write_text(text)
    assert code(work) != before


def test_a_document_that_the_program_may_read_counts(work: Path) -> None:
    before = code(work)
    (work / "search.yaml").write_text(SEARCH)
    assert code(work) == before
    assert code(work, TOPOLOGY.replace('"2"', "conf/search.yaml")) != before
    (work / "lib.py").write_text("settings = 'search.yaml'\n")
    mentioned = code(work)
    (work / "search.yaml").write_text(SEARCH.replace("trials: 3", "trials: 4"))
    assert code(work) != mentioned


def test_a_document_that_has_changed_since_the_snapshot_counts(work: Path) -> None:
    topology = topology_from_text(TOPOLOGY).topology
    assert topology is not None
    before = code(work)
    (work / "topology.yaml").write_text("depth: 4\n")
    snapshot = take_snapshot(work)
    (work / "topology.yaml").write_text(TOPOLOGY)
    assert code_root(snapshot, topology) not in (before, code(work))
