from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from tests.core.examples import EVERY_KEY
from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem
from torchyard_core.topology.file import dump, read_topology, topology_from_text
from torchyard_core.topology.model import Topology
from torchyard_core.topology.overrides import apply_overrides
from torchyard_core.yaml_io.parser import parse_yaml
from torchyard_core.yaml_io.writer import dump_yaml


def example() -> Topology:
    read = topology_from_text(EVERY_KEY).topology
    assert read is not None
    return read


def test_what_is_written_reads_as_the_same_topology() -> None:
    again = topology_from_text(dump(example())).topology
    assert again == example()


def test_writing_is_stable() -> None:
    once = dump(example())
    again = topology_from_text(once).topology
    assert again is not None
    assert dump(again) == once


def test_only_what_was_set_is_written_in_the_model_s_order() -> None:
    read = topology_from_text(
        "program: {script: a.py}\npools: [{replicas: 2, role: worker, cpus: 4, name: w}]\nname: x\nversion: 1\n"
    ).topology
    assert read is not None
    assert dump(read) == (
        "version: 1\nname: x\npools:\n  - name: w\n    role: worker\n    replicas: 2\n    cpus: 4\n"
        "program:\n  script: a.py\n"
    )


@pytest.mark.parametrize(
    "value",
    [
        "1e3",
        "0o17",
        "no",
        "10:30",
        "",
        "~",
        "null",
        " x ",
        "a: b",
        "# x",
        "ü",
        "two\nlines\n",
        "\u2028",
        "-",
        "'",
        "2.50",
    ],
)
def test_text_stays_text_whatever_it_looks_like(value: str) -> None:
    data = {"text": value, "list": [value], value: 1}
    assert parse_yaml(dump_yaml(data), "x").data == data


@pytest.mark.parametrize("value", [None, True, 0, -1, 1.5, 1e30, [], {}, [[]], [{}]])
def test_plain_values_stay_themselves(value: object) -> None:
    assert parse_yaml(dump_yaml({"a": value}), "x").data == {"a": value}


def test_the_layout_survives_a_setting() -> None:
    assert apply_overrides(example(), ["name=y"]).layout == example().layout
    assert apply_overrides(example(), ["layout={a: 1}"]).layout == {"a": 1}
    assert apply_overrides(example(), ["layout="]).layout is None


def test_the_layout_is_carried_through_untouched() -> None:
    assert example().as_data()["layout"] == {"nodes": {"chief-0": [10, 20.5]}, "notes": ["1e3", "yes"]}


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "a.yaml", dump(example()))
    assert read_topology(tmp_path / "new" / "a.yaml").topology == example()


def test_writing_keeps_the_file_s_mode_and_follows_a_link_to_it(tmp_path: Path) -> None:
    target, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o640)


def test_a_new_private_file_is_private(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "x", 0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("a", "old")]


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot be written"):
        write_atomically(tmp_path / "file" / "a.yaml", "x")
    with pytest.raises(FileProblem, match="cannot be written"):
        write_atomically(tmp_path, "x")
    assert [found.name for found in tmp_path.parent.glob(f".{tmp_path.name}.*")] == []


def test_the_unfinished_copy_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    abandoned, fresh, others = (
        tmp_path / name for name in (".a.yaml.0123456789ab", ".a.yaml.ba9876543210", ".b.yaml.0123456789ab")
    )
    for path, age_s in ((abandoned, 7200), (fresh, 60), (others, 7200)):
        path.write_text("half")
        os.utime(path, (time.time() - age_s,) * 2)
    write_atomically(tmp_path / "a.yaml", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.yaml", fresh, others])
