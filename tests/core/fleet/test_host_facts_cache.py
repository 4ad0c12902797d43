from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from torchyard_core.fleet.host_facts_cache import forget_facts, load_facts, planner_hosts, save_facts
from torchyard_core.fleet.inventory import Host

FOUND: dict[str, Any] = {
    "cpus": 16,
    "memory_gb": 62.7,
    "gpus": [{"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "memory_mb": 143771}],
    "python": {"path": "/opt/torch/bin/python", "version": "3.11.9"},
    "torch": "2.13.0",
    "problems": [],
}
A = Host(name="a", address="10.0.0.1", data_address="192.168.7.1", ports="29400-29499", labels={"rack": "r1"})
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


def test_what_was_found_is_kept_with_where_and_when(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    save_facts(path, [(A, FOUND)], NOW)
    assert load_facts(path) == {"a": {**FOUND, "address": "10.0.0.1", "checked_at": "2026-11-21T04:00:00Z"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_finding_leaves_other_hosts_alone(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    save_facts(path, [(A, FOUND), (Host(name="b"), FOUND)], NOW)
    save_facts(path, [(A, {"cpus": 1})], NOW)
    assert (load_facts(path)["a"]["cpus"], load_facts(path)["b"]["cpus"]) == (1, 16)
    forget_facts(path, "a")
    assert list(load_facts(path)) == ["b"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', "\x00", "[" * 100_000])
def test_a_damaged_cache_counts_as_nothing_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    assert load_facts(path) == {}
    save_facts(path, [(A, FOUND)], NOW)
    assert list(load_facts(path)) == ["a"]


def test_no_cache_is_no_error(tmp_path: Path) -> None:
    assert load_facts(tmp_path / "facts.json") == {}
    forget_facts(tmp_path / "facts.json", "a")


def test_the_planner_sees_what_the_file_says_with_what_was_found(tmp_path: Path) -> None:
    save_facts(tmp_path / "facts.json", [(A, FOUND)], NOW)
    [host] = planner_hosts([A], load_facts(tmp_path / "facts.json"))
    assert (host.checked, host.address, host.data_address, host.port_range) == (
        True,
        "10.0.0.1",
        "192.168.7.1",
        (29400, 29499),
    )
    assert (host.cpus, host.memory_gb, host.torch) == (16, 62.7, "2.13.0")
    assert (host.python, host.found_python) == (None, "/opt/torch/bin/python")
    assert [(gpu.index, gpu.uuid, gpu.name, gpu.memory_mb) for gpu in host.gpus] == [
        (0, "GPU-1", "NVIDIA H200", 143771)
    ]
    assert (host.use_known, host.labels) == (False, {"rack": "r1"})


def test_a_host_that_moved_to_another_address_was_never_checked(tmp_path: Path) -> None:
    save_facts(tmp_path / "facts.json", [(A, FOUND)], NOW)
    moved = Host(name="a", address="10.0.0.2")
    [host] = planner_hosts([moved], load_facts(tmp_path / "facts.json"))
    assert (host.checked, host.cpus, host.gpus) == (False, None, ())


@pytest.mark.parametrize(
    "damage",
    [{"gpus": 3}, {"gpus": [{}]}, {"gpus": None}, {"gpus": [[1]]}, {"cpus": "x"}, {"python": 3}, {"torch": 2}],
)
def test_a_finding_that_makes_no_sense_is_left_out(damage: dict[str, Any]) -> None:
    facts = json.loads(json.dumps({**FOUND, **damage, "address": "10.0.0.1"}))
    [host] = planner_hosts([A], {"a": facts})
    assert host.checked
