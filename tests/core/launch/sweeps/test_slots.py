"""Tests of the slots of a sweep: which hosts and GPUs its trials get."""

from __future__ import annotations

from typing import Any

from tests.core.examples import host
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.replica_plans import PreparedHost
from torchyard_core.launch.sweeps.slots import SlotPlans, plan_slots
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts


def slots(pools: str, hosts: list[HostFacts], parallel: int) -> SlotPlans:
    text = f"version: 1\nname: x\npools: {pools}\nprogram: {{script: a.py, args: ['{{run_dir}}', '{{params.lr}}']}}\n"
    topology = topology_from_text(text).topology
    assert topology is not None
    return plan_slots(lambda known: plan(topology, known), hosts, parallel)


def gpus(plans: SlotPlans) -> list[list[str]]:
    return [[gpu.uuid for replica in slot.replicas for gpu in replica.gpus] for slot in plans.slots]


def test_trials_side_by_side_share_no_gpu() -> None:
    found = slots("[{name: w, role: worker, replicas: 2, gpus: 1}]", [host("a", 4), host("b", 2)], 5)
    used = [uuid for slot in gpus(found) for uuid in slot]
    assert len(found.slots) == 3
    assert len(used) == len(set(used)) == 6


def test_trials_without_gpus_are_spread_over_the_hosts() -> None:
    found = slots("[{name: w, role: worker, replicas: 1}]", [host("a"), host("b"), host("c")], 4)
    assert sorted(slot.hosts for slot in found.slots[:3]) == [("a",), ("b",), ("c",)]
    assert len(found.slots) == 4


def test_reserved_cpus_limit_the_number_of_slots() -> None:
    hosts = [host("a", cpus=8), host("b", cpus=4)]
    found = slots("[{name: w, role: worker, replicas: 1, cpus: 3}]", hosts, 9)
    assert sorted(slot.hosts[0] for slot in found.slots) == ["a", "a", "b"]


def test_a_trial_that_fits_nowhere_is_a_problem_and_no_slot_more() -> None:
    found = slots("[{name: w, role: worker, replicas: 3, gpus: 1}]", [host("a", 2)], 2)
    assert len(found.slots) == 1
    assert not found.whole.can_start


def test_the_whole_plan_numbers_the_replicas_of_all_slots() -> None:
    found = slots("[{name: c, role: chief, replicas: 1}, {name: w, role: worker, replicas: 2}]", [host("a")], 2)
    names = [replica.name for replica in found.whole.replicas]
    assert names == ["chief-0", "worker-0", "worker-1", "chief-1", "worker-2", "worker-3"]
    assert found.whole.hosts == ("a",)
    assert found.ports() == {"a": 8}


def test_a_slot_has_ports_of_its_own_and_the_place_of_a_trial_s_run_id() -> None:
    found = slots("[{name: w, role: worker, replicas: 1}]", [host("a")], 2)
    site = PreparedHost("10.0.0.1", "ib0", "/runs/TOKEN", "python3", (1, 2, 3, 4))
    described: list[Any] = found.described({"a": site}, "TOKEN", lambda slot, name: {"host": name})
    first, second = described
    assert first["hosts"] == second["hosts"] == ["a"]
    assert first["prepare"] == {"a": {"host": "a"}}
    assert [slot["replicas"][0]["address"] for slot in described] == ["10.0.0.1:1", "10.0.0.1:3"]
    assert [slot["cluster"]["masters"]["trainers"]["port"] for slot in described] == [2, 4]
    worker = first["replicas"][0]
    assert (worker["run_dir"], first["cluster"]["run_id"]) == ("/runs/TOKEN", "TOKEN")
    assert worker["env"]["TORCHYARD_RUN_DIR"] == "/runs/TOKEN/outputs/worker-0"
    assert worker["argv"][-1] == "{params.lr}"
