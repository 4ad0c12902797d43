"""Tests of plans for the canvas: an edited topology on a cluster whose nodes Slurm has yet to choose."""

from __future__ import annotations

from tests.core.engines.slurm.samples import CLUSTER, DESCRIPTION
from torchyard_core.engines.slurm.design_plan import design_input, numbered_slots
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


def test_a_design_for_hosts_is_planned_on_slots_that_are_numbered_as_in_a_launch() -> None:
    moved, slots = design_input(topology(), CLUSTER, DESCRIPTION)
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


def test_a_topology_that_names_the_cluster_keeps_its_pins_to_slots() -> None:
    text = TEXT.replace("placement: spread}", "hosts: [hpc]}").replace(
        "hosts: [gpu-a], labels: {rack: r1}}", "hosts: [hpc]}"
    )
    moved, slots = design_input(topology(text.replace("gpu-a}", "hpc.2}")), CLUSTER, DESCRIPTION)
    assert moved.pins == {"worker-0": "hpc.2"}
    assert plan(moved, slots).replica("worker-0").host == "hpc.2"


def test_replicas_that_no_node_can_take_have_no_slot() -> None:
    moved, slots = design_input(topology(TEXT.replace("gpus: 4", "gpus: 8")), CLUSTER, DESCRIPTION)
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    assert [one.host for one in shown.replicas if one.trains] == [None, None]
    assert [host.name for host in used] == ["hpc.1", "hpc.2"]


def test_a_cluster_that_has_not_been_checked_counts_as_able() -> None:
    moved, slots = design_input(topology(), CLUSTER, None)
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    assert {one.host for one in shown.replicas} == {"hpc"}
    assert [(host.name, host.checked) for host in used] == [("hpc", False)]


def test_worker_groups_in_jobs_of_their_own_have_slots_of_their_own() -> None:
    text = TEXT.replace("replicas: 2, gpus: 4", "replicas: 2, min_replicas: 1, gpus: 1")
    moved, slots = design_input(topology(text), CLUSTER, DESCRIPTION)
    shown, used = numbered_slots(plan(moved, slots), CLUSTER, slots)
    hosts = {one.name: one.host for one in shown.replicas}
    assert hosts == {"worker-0": "hpc.1", "ps-0": "hpc.2", "ps-1": "hpc.3", "worker-1": "hpc.4"}
    assert [host.name for host in used] == ["hpc.1", "hpc.2", "hpc.3", "hpc.4"]
