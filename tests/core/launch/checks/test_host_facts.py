"""Tests of the preflight checks that use the facts of hosts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import examples
from torchyard_core.launch.checks.check import Check, failed
from torchyard_core.launch.checks.host_facts import check_host, check_sharding, check_strategy, check_working_folders
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Topology

FACTS: dict[str, Any] = {
    "python": {"path": "/opt/python", "version": "3.12.1"},
    "torch": "2.13.0",
    "disk_free_gb": 50.0,
    "problems": [],
}


def topology(program: str = "{script: train.py}", pool: str = "") -> Topology:
    text = f"version: 1\nname: t\npools:\n  - {{name: w, role: worker, replicas: 2{pool}}}\nprogram: {program}\n"
    found = topology_from_text(text).topology
    assert found is not None
    return found


def test_a_host_that_has_everything() -> None:
    lines = check_host(topology(), "gpu-a", FACTS)

    assert not failed(lines)
    assert [line.message for line in lines] == ["Python 3.12.1 at /opt/python", "torch 2.13.0", "50 GB free"]


def test_no_torch_stops_the_launch_and_says_how_to_get_it() -> None:
    red = failed(check_host(topology(), "gpu-a", {**FACTS, "torch": None}))

    assert [line.message for line in red] == ["torch is not installed for /opt/python on gpu-a."]
    assert "/opt/python -m pip install torch" in red[0].hint


def test_setup_may_bring_torch_along() -> None:
    lines = check_host(topology("{script: a.py, setup: [source venv/bin/activate]}"), "gpu-a", {**FACTS, "torch": None})

    assert not failed(lines)
    assert any(line.warning and "setup" in line.message for line in lines)


def test_a_command_needs_no_torch() -> None:
    assert not failed(check_host(topology("{launcher: command, command: [ls]}"), "gpu-a", {**FACTS, "torch": None}))


def test_a_full_disk_stops_the_launch() -> None:
    red = failed(check_host(topology(), "gpu-a", {**FACTS, "disk_free_gb": 0.1}))

    assert "the disk of gpu-a is full: 102 MB free" in red[0].message


def test_severity_is_a_colour() -> None:
    lines = [
        Check("disk", "a", True, "fine"),
        Check("disk", "a", True, "careful", warning=True),
        Check("disk", "a", False, "no"),
    ]

    assert [line.severity for line in lines] == ["green", "amber", "red"]
    assert [line.to_event().get("warning") for line in lines] == [None, True, None]
    assert {"name", "host", "ok", "message"} < set(lines[0].to_event())


WORKERS = "{name: w, role: worker, replicas: 2}"
SERVERS = "{name: s, role: ps, replicas: 2}"
EVALUATOR = "{name: e, role: evaluator, replicas: 1}"


def shared(*pools: str, hosts: int = 1, **more: str) -> list[tuple[str, bool, str]]:
    """Checks the working folders of a topology.

    Returns the host of each check, whether the check is a warning, and its message up to the colon.
    """
    known = [examples.host(f"gpu-{number}", 8) for number in range(hosts)]
    lines = check_working_folders(plan(examples.topology(*pools, **more), known))
    assert all(line.name == "folder" and line.ok and "TORCHYARD_RUN_DIR" in line.hint for line in lines)
    return [(line.host, line.warning, line.message.partition(":")[0]) for line in lines]


def test_several_replicas_that_train_in_one_folder_are_warned_of() -> None:
    three = ("gpu-0", True, "3 replicas share the run's working folder")
    assert shared(WORKERS, EVALUATOR) == [three]
    assert shared("{name: w, role: worker, replicas: 2, placement: spread}", hosts=2) == []


def test_servers_do_not_come_to_the_training_loop_unless_the_command_is_the_users() -> None:
    one = "{name: w, role: worker, replicas: 1}"
    assert shared(one, SERVERS, strategy="{kind: sandblaster}") == []
    warnings = shared(one, SERVERS, strategy="{kind: none}", program="{launcher: command, command: [python, a.py]}")
    assert warnings == [("gpu-0", True, "3 replicas share the run's working folder")]


def test_a_strategy_that_the_program_does_not_take_part_in_is_warned_of() -> None:
    served = examples.topology("{name: w, role: worker, replicas: 1}", SERVERS, strategy="{kind: downpour}")
    (line,) = check_strategy(served, joins=False)
    assert line.ok
    assert line.warning
    assert "does not import torchyard_roles, so downpour has no effect" in line.message
    assert "torchyard_roles.join()" in line.hint
    assert check_strategy(served, joins=True) == check_strategy(served, joins=None) == []
    for kind in ("all_reduce", "none"):
        assert check_strategy(examples.topology(WORKERS, strategy=f"{{kind: {kind}}}"), joins=False) == []


SHARDED = "{kind: all_reduce, shard: all}"


@pytest.mark.parametrize(("version", "is_recent"), [("2.5.1+cu121", False), ("2.6.0", True), ("2.13.0", True)])
def test_sharding_needs_a_recent_torch(version: str, is_recent: bool) -> None:
    facts = {**FACTS, "torch": version}
    red = failed(check_host(examples.topology(WORKERS, strategy=SHARDED), "gpu-a", facts))
    assert bool(red) is not is_recent
    for line in red:
        assert line.message == "torch 2.5.1+cu121 on gpu-a is too old for strategy.shard, which needs 2.6 or newer."
    assert not failed(check_host(examples.topology(WORKERS), "gpu-a", facts))


def test_a_sharded_model_on_several_hosts_needs_a_shared_folder_for_checkpoints() -> None:
    spread = "{name: w, role: worker, replicas: 2, placement: spread}"

    def problems(count: int, **more: str) -> list[str]:
        known = [examples.host(f"gpu-{number}", 8) for number in range(count)]
        return [line.message for line in failed(check_sharding(plan(examples.topology(spread, **more), known)))]

    assert problems(2, strategy=SHARDED) == [
        "A sharded model is saved by all 2 hosts into one folder, but program.checkpoint_dir is not set."
    ]
    assert problems(1, strategy=SHARDED) == []
    assert problems(2, strategy="{kind: all_reduce}") == []
    assert problems(2, strategy=SHARDED, program="{script: a.py, checkpoint_dir: /shared}") == []
