"""Tests that a run's plan is restored from the run's record, even if the hosts have changed since then."""

from __future__ import annotations

from tests.core.examples import host, topology
from torchyard_core.launch.launch import planned_replicas
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.runs.recorded_plan import recorded_plan
from torchyard_core.topology.file import dump
from torchyard_core.topology.host_facts import HostFacts

TOPOLOGY = topology(
    "{name: chief, role: chief, replicas: 1, gpus: 1}", "{name: workers, role: worker, replicas: 3, gpus: 1}"
)


def test_a_record_gives_the_plan_that_was_made() -> None:
    hosts = (host("gpu-a", 2), host("gpu-b", 2))
    planned = plan(TOPOLOGY, hosts)
    read = recorded_plan(dump(TOPOLOGY), planned_replicas(planned), hosts)
    assert read is not None
    assert read[0].replicas == planned.replicas
    assert read[0].worlds == planned.worlds
    assert read[0].hosts == planned.hosts
    assert read[1] == hosts


def test_hosts_have_the_order_of_the_fleet_as_racks_of_the_topology_have() -> None:
    hosts = (host("gpu-a", 2), host("gpu-b", 2))
    planned = planned_replicas(plan(TOPOLOGY, hosts))
    read = recorded_plan(dump(TOPOLOGY), planned[::-1], hosts)
    assert read is not None
    assert read[1] == hosts
    assert read[0].hosts == ("gpu-a", "gpu-b")


def test_a_host_that_left_the_fleet_has_the_gpus_that_the_run_used() -> None:
    planned = plan(TOPOLOGY, (host("gpu-a", 2), host("gpu-b", 2)))
    read = recorded_plan(dump(TOPOLOGY), planned_replicas(planned), (host("gpu-a", 2),))
    assert read is not None
    gone = read[1][1]
    assert isinstance(gone, HostFacts)
    assert (gone.name, [gpu.uuid for gpu in gone.gpus]) == ("gpu-b", ["GPU-gpu-b-0", "GPU-gpu-b-1"])
    assert [replica.host for replica in read[0].replicas] == ["gpu-a", "gpu-a", "gpu-b", "gpu-b"]


def test_a_record_without_a_readable_topology_gives_no_plan() -> None:
    planned = planned_replicas(plan(TOPOLOGY, (host("gpu-a", 4),)))
    assert recorded_plan("", planned, ()) is None
    assert recorded_plan("version: 9\n", planned, ()) is None
    assert recorded_plan(dump(TOPOLOGY), [], ()) is None


def test_the_coordinator_of_a_sweep_has_no_plan() -> None:
    coordinator = {"name": "coordinator-0", "host": "gpu-a", "gpus": ["GPU-gpu-a-0"]}
    assert recorded_plan(dump(TOPOLOGY), [coordinator], (host("gpu-a", 4),)) is None
