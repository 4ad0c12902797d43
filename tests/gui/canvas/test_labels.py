"""Tests that racks show no values that are unknown."""

from __future__ import annotations

from tests.gui.canvas import samples
from torchyard_core.topology.model import Role
from torchyard_gui.canvas import labels
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.rack_content import RackContent
from torchyard_gui.canvas.scene import TopologyScene


def rack() -> RackContent:
    """Returns the content of the rack of a host with two GPUs and two workers."""
    from torchyard_core.launch.rank_assignment import plan

    hosts = [samples.host("gpu-a", 2)]
    scene = TopologyScene()
    scene.show_plan(plan(samples.topology(samples.pool("workers", Role.WORKER, 2, 1)), hosts), hosts)
    return scene._racks["gpu-a"].content


def test_a_live_rack_counts_what_is_busy() -> None:
    states = {"worker-0": ReplicaLiveState("running"), "worker-1": ReplicaLiveState("succeeded")}
    assert labels.use_of(rack(), None, states) == "1 of 2 GPUs busy"


def test_of_a_rack_whose_replicas_have_ended_nothing_is_said_of_its_gpus() -> None:
    states = {name: ReplicaLiveState(state) for name, state in (("worker-0", "failed"), ("worker-1", "stopped"))}
    assert labels.use_of(rack(), None, states) == "ended"
    assert labels.use_of(rack(), HostLiveState("idle", note="ended 14:21"), states) == "ended 14:21"


def test_before_anything_is_heard_nothing_is_said_to_be_idle() -> None:
    assert labels.use_of(rack(), None, {}) == "2 workers"
