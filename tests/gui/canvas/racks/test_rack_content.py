"""Tests of what racks and chips show: headers, the tray, and descriptions of replicas."""

from __future__ import annotations

from tests.gui.canvas import samples
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.model import Role
from torchyard_gui.canvas import labels
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.rack_content import racks_of, unplaced


def test_racks_are_the_hosts_that_are_used_or_pinned_in_the_fleets_order():
    drawn, hosts = samples.drawn_example()
    assert [rack.key for rack in racks_of(drawn, hosts)] == ["gpu-a", "gpu-b", "gpu-c", "cpu-e", "cpu-f"]
    assert [rack.key for rack in racks_of(drawn, hosts, also=["gpu-d"])][3] == "gpu-d"


def test_a_pinned_host_has_a_rack_even_where_nothing_fits_there():
    hosts = [samples.host("gpu-a", 2), samples.host("gpu-b", 0)]
    design = samples.topology(samples.pool("w", Role.WORKER, 1, 1), pins={"worker-0": "gpu-b:0"})
    assert "gpu-b" in [rack.key for rack in racks_of(plan(design, hosts), hosts)]


def test_headers_say_gpus_and_use():
    drawn, hosts = samples.drawn_example()
    racks = {rack.key: rack for rack in racks_of(drawn, hosts, also=["gpu-d"])}
    assert labels.gpu_kinds(racks["gpu-a"]) == "8 × H100 80 GB"
    assert labels.gpu_kinds(racks["cpu-e"]) == "no GPU"
    assert labels.use_of(racks["gpu-c"], None, None) == "3 of 4 used"
    assert labels.use_of(racks["gpu-d"], None, None) == "4 of 4 in use by others"
    assert labels.use_of(racks["cpu-e"], None, None) == "2 servers"
    assert labels.use_of(racks["cpu-f"], HostLiveState("unknown", "09:41"), None) == "unknown since 09:41"
    states = {"chief-0": ReplicaLiveState("running"), "evaluator-0": ReplicaLiveState("failed")}
    assert labels.use_of(racks["gpu-c"], None, states) == "1 of 4 GPUs busy"
    assert labels.use_of(racks["gpu-d"], None, states) == "not in this run"


def test_what_has_no_place_is_in_the_tray_with_the_reason():
    hosts = [samples.host("gpu-a", 2)]
    drawn = plan(samples.topology(samples.pool("w", Role.WORKER, 4, 1)), hosts)
    chips, reasons = unplaced(drawn)
    assert [chip.name for chip in chips] == ["worker-2", "worker-3"]
    assert any("worker-2" in reason for reason in reasons)


def test_numbers_in_a_row_are_a_range():
    assert labels.ranges((2, 3)) == "2, 3"
    assert labels.ranges((0, 1, 2, 3, 6)) == "0–3, 6"


def test_a_replica_is_described_for_tool_tips_and_screen_readers():
    drawn, hosts = samples.drawn_example()
    chip = next(c for rack in racks_of(drawn, hosts) for c in rack.chips if c.name == "worker-13")
    look = ReplicaLiveState("running", 0.6, "61 %", "wait", "1.8×")
    assert labels.described(chip, look) == "worker-13, GPU 5 on gpu-b, running, 1.8×, 61 %"
    lost = labels.described(chip, ReplicaLiveState("running", 0.6, "", stale_since="14:21"))
    assert lost == "worker-13, GPU 5 on gpu-b, unknown, last 14:21"
