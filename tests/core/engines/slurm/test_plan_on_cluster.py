"""Tests of plans for the canvas: an edited topology on a cluster whose nodes Slurm has yet to choose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.engines.slurm.samples import ANSWER, CLUSTER, DESCRIPTION, SHAPES
from torchyard_core.engines.slurm.description import NeverStarts
from torchyard_core.engines.slurm.plan_on_cluster import PlanOnCluster, numbered_slots, planner_input
from torchyard_core.engines.slurm.planned_nodes import request_text
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Topology

TEXT = """
version: 1
name: x
pools:
  - {name: servers, role: ps, replicas: 2, placement: spread}
  - {name: workers, role: worker, replicas: 2, gpus: 4, hosts: [gpu-a], labels: {rack: r1}}
strategy: {kind: downpour}
pins: {worker-0: gpu-a}
program: {script: train.py}
"""


def topology(text: str = TEXT) -> Topology:
    found = topology_from_text(text).topology
    assert found is not None
    return found


def test_a_topology_for_hosts_is_planned_on_slots_that_are_numbered_as_in_a_launch() -> None:
    moved, slots = planner_input(topology(), CLUSTER, DESCRIPTION)
    assert (moved.pins, moved.pools[1].labels) == ({}, {})
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    assert {one.name: one.host for one in shown.replicas} == {
        "worker-0": "hpc.1",
        "worker-1": "hpc.2",
        "ps-0": "hpc.3",
        "ps-1": "hpc.4",
    }
    assert [(host.name, len(host.gpus), host.cpus, host.cluster) for host in used] == [
        ("hpc.1", 4, 32, "hpc"),
        ("hpc.2", 4, 32, "hpc"),
        ("hpc.3", 0, 64, "hpc"),
        ("hpc.4", 0, 64, "hpc"),
    ]


def test_a_plan_on_a_cluster_has_the_request_for_nodes() -> None:
    found = PlanOnCluster.of(topology_from_text(TEXT), CLUSTER, DESCRIPTION)
    assert found.plan.hosts == ("hpc.1", "hpc.2", "hpc.3", "hpc.4")
    assert [one.to_json() for one in found.components] == [
        {"count": 2, "slots": ["hpc.1", "hpc.2"], "cpus": 4, "memory_mb": None, "gpus": {"a100": 4}},
        {"count": 2, "slots": ["hpc.3", "hpc.4"], "cpus": 1, "memory_mb": None, "gpus": {}},
    ]
    assert request_text(found.components) == (
        "2 nodes (--cpus-per-task=4 --gpus-per-node=a100:4) and 2 nodes (--cpus-per-task=1)"
    )


def test_a_topology_that_names_the_cluster_keeps_its_pins_to_slots() -> None:
    text = TEXT.replace("placement: spread}", "hosts: [hpc]}").replace(
        "hosts: [gpu-a], labels: {rack: r1}}", "hosts: [hpc]}"
    )
    moved, slots = planner_input(topology(text.replace("gpu-a}", "hpc.2}")), CLUSTER, DESCRIPTION)
    assert moved.pins == {"worker-0": "hpc.2"}
    assert plan(moved, slots).replica("worker-0").host == "hpc.2"


def test_replicas_that_no_node_can_take_have_no_slot() -> None:
    moved, slots = planner_input(topology(TEXT.replace("gpus: 4", "gpus: 8")), CLUSTER, DESCRIPTION)
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    assert [one.host for one in shown.replicas if one.trains] == [None, None]
    assert [host.name for host in used] == ["hpc.1", "hpc.2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("gpus: 8", "8 GPUs; no node of hpc has it (32 CPUs, 250 GB, 4 × a100; 64 CPUs, 500 GB)"),
        ("gpus: 4, memory_gb: 500", "4 GPUs and 500 GB of memory; no node of hpc has it (32 CPUs, 250 GB, 4 × a100; "),
        ("gpus: 4, cpus: 40", "4 GPUs and 40 CPUs; no node of hpc has it"),
        ("gpus: 1, gpu_memory_gb: 40", "Slurm does not tell the memory of GPUs, so choose them by `gpu_model`"),
        (
            "gpus: 4, replicas: 5",
            "worker-3 and worker-4 each need 4 GPUs; hpc has 3 such nodes, which the run's other ",
        ),
    ],
)
def test_a_request_that_no_node_satisfies_is_explained_by_the_shapes_of_nodes(changes: str, message: str) -> None:
    before = "replicas: 2, gpus: 4," if "replicas" in changes else "gpus: 4,"
    found = PlanOnCluster.of(topology_from_text(TEXT.replace(before, f"{changes},")), CLUSTER, DESCRIPTION)
    (problem,) = found.plan.problems
    assert message in problem.message
    assert "host" not in problem.message


def test_labels_match_no_node() -> None:
    labelled = topology_from_text(
        TEXT.replace("hosts: [gpu-a]", "hosts: [hpc]").replace("placement: spread", "hosts: [hpc]")
    )
    assert labelled.topology is not None
    named = replace(labelled, topology=labelled.topology.model_copy(update={"pins": {}}))
    (problem,) = PlanOnCluster.of(named, CLUSTER, DESCRIPTION).plan.problems
    assert problem.message == (
        "worker-0 and worker-1 each need a node labelled rack=r1, but nodes of hpc have no labels"
    )


def test_a_partition_without_usable_nodes_is_named() -> None:
    shapes = [{**SHAPES[0], "states": {"down": 3, "drained": 1}}]
    down = replace(DESCRIPTION, answer={**ANSWER, "nodes": shapes})
    with pytest.raises(NeverStarts, match=r"the partition gpu of hpc has no node .* \(3 nodes down, 1 node drained\)"):
        PlanOnCluster.of(topology_from_text(TEXT), CLUSTER, down)


def test_a_cluster_that_has_not_been_checked_counts_as_able() -> None:
    moved, slots = planner_input(topology(), CLUSTER, None)
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    assert {one.host for one in shown.replicas} == {"hpc"}
    assert [(host.name, host.checked) for host in used] == [("hpc", False)]


def test_worker_groups_in_jobs_of_their_own_have_slots_of_their_own() -> None:
    text = TEXT.replace("replicas: 2, gpus: 4", "replicas: 2, min_replicas: 1, gpus: 1")
    moved, slots = planner_input(topology(text), CLUSTER, DESCRIPTION)
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    hosts = {one.name: one.host for one in shown.replicas}
    assert hosts == {"worker-0": "hpc.1", "ps-0": "hpc.2", "ps-1": "hpc.3", "worker-1": "hpc.4"}
    assert [host.name for host in used] == ["hpc.1", "hpc.2", "hpc.3", "hpc.4"]
