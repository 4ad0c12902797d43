from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.examples import host, topology
from torchyard_core.errors import UsageError
from torchyard_core.topology.document.edits import empty_topology, set_pins
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Role
from torchyard_core.topology.placement.manual_placement import drop_refusal, new_replica_refusal, pins_for
from torchyard_core.topology.placement.planner import place

EVALUATOR = "{name: e, role: evaluator, replicas: 1, gpus: "
ONE_EACH = topology("{name: w, role: worker, replicas: 4, gpus: 1}")
TWO_EACH = topology("{name: w, role: worker, replicas: 2, gpus: 2}")
HOSTS = [host("a", 4), host("b", 4)]


def test_one_replica_goes_to_the_slot_under_the_mouse() -> None:
    assert pins_for(ONE_EACH, HOSTS, ["worker-1"], "b:2") == {"worker-1": "b:2"}


def test_several_take_the_slots_from_there_on() -> None:
    pins = pins_for(ONE_EACH, HOSTS, ["worker-1", "worker-3"], "b:2")
    assert pins == {"worker-1": "b:2", "worker-3": "b:3"}


def test_slots_that_others_are_pinned_to_or_hold_are_passed_over() -> None:
    pinned = topology("{name: w, role: worker, replicas: 4, gpus: 1}", pins="{worker-0: 'b:1'}")
    pins = pins_for(pinned, [host("b", 4, busy=(2,))], ["worker-1", "worker-2"], "b:0")
    assert pins == {"worker-1": "b:0", "worker-2": "b:3"}


def test_a_replica_of_two_gpus_takes_both_and_moves_down_at_the_end() -> None:
    assert pins_for(TWO_EACH, HOSTS, ["worker-0"], "a:1") == {"worker-0": "a:1-2"}
    assert pins_for(TWO_EACH, HOSTS, ["worker-0"], "a:3") == {"worker-0": "a:2-3"}


def test_gpus_that_are_not_side_by_side_are_listed() -> None:
    assert pins_for(TWO_EACH, [host("a", 4, busy=(1,))], ["worker-0"], "a:0") == {"worker-0": "a:0,2"}


def test_a_host_as_target_pins_to_the_host() -> None:
    assert pins_for(ONE_EACH, HOSTS, ["worker-0", "worker-1"], "b") == {"worker-0": "b", "worker-1": "b"}


def test_a_replica_without_gpus_is_pinned_to_the_host_of_the_slot() -> None:
    servers = topology("{name: w, role: worker, replicas: 1}", "{name: s, role: ps, replicas: 1}")
    assert pins_for(servers, HOSTS, ["ps-0"], "b:1") == {"ps-0": "b"}


def test_nowhere_means_that_the_planner_chooses() -> None:
    assert pins_for(ONE_EACH, HOSTS, ["worker-0"], "") == {"worker-0": None}
    assert drop_refusal(ONE_EACH, HOSTS, ["worker-0"], "") == ""


def test_a_host_that_was_never_checked_counts_as_able() -> None:
    unknown = [HostFacts("u")]
    assert drop_refusal(ONE_EACH, unknown, ["worker-0", "worker-1"], "u:5") == ""


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("c:0", "the fleet has no host c"),
        ("a:0", ""),
        ("b:1", "b:1 is used by another user"),
        ("cpu:0", "cpu has no GPU, and worker-0 takes 1 GPU"),
        ("cpu", "on cpu, where it is pinned, worker-0 needs 1 GPU"),
        ("b:3", ""),
        ("a", ""),
    ],
)
def test_the_reason_why_it_does_not_fit(target: str, reason: str) -> None:
    pinned = topology("{name: w, role: worker, replicas: 4, gpus: 1}", pins="{worker-3: 'a:0'}")
    hosts = [host("a", 4), host("b", 4, busy=(1,)), host("cpu")]
    refusal = drop_refusal(pinned, hosts, ["worker-0"], target)
    assert refusal.startswith(reason) if reason else refusal == ""


def test_a_drop_on_an_occupied_gpu_swaps() -> None:
    # The displaced replica has no pin and needs none, because the planner moves it to the other GPU anyway.
    assert pins_for(ONE_EACH, [host("a", 4)], ["worker-3"], "a:0") == {"worker-3": "a:0"}
    after = place(set_pins(ONE_EACH, {"worker-3": "a:0"}), [host("a", 4)])
    assert after.slots["worker-0"].gpus[0].index == 3
    # The displaced replica has a pin, which is changed to the other GPU.
    pinned = set_pins(ONE_EACH, {"worker-0": "a:0", "worker-3": "b:1"})
    assert pins_for(pinned, HOSTS, ["worker-3"], "a:0") == {"worker-3": "a:0", "worker-0": "b:1"}
    # The displaced replica has no pin, but gets one, because the planner would place it elsewhere.
    assert pins_for(pinned, HOSTS, ["worker-3"], "a:2") == {"worker-3": "a:2", "worker-2": "b:1"}


def test_a_replica_of_two_gpus_swaps_with_both_replicas_there() -> None:
    mixed = topology(
        "{name: e, role: evaluator, replicas: 1, gpus: 2}", "{name: w, role: worker, replicas: 2, gpus: 1}"
    )
    assert {name: slot.gpus[0].index for name, slot in place(mixed, [host("a", 4)]).slots.items()} == {
        "worker-0": 0, "worker-1": 1, "evaluator-0": 2,
    }  # fmt: skip
    pins = pins_for(mixed, [host("a", 4)], ["evaluator-0"], "a:0")
    assert pins == {"evaluator-0": "a:0-1"}
    after = place(set_pins(mixed, pins), [host("a", 4)])
    assert {name: slot.gpus[0].index for name, slot in after.slots.items()} == {
        "worker-0": 2, "worker-1": 3, "evaluator-0": 0,
    }  # fmt: skip


def test_no_swap_with_a_replica_that_does_not_fit_in_return() -> None:
    worker = "{name: w, role: worker, replicas: 1, gpus: 1}"
    both = topology(EVALUATOR + "2}", worker)
    pinned = set_pins(both, {"evaluator-0": "a:0-1", "worker-0": "b:0"})
    assert drop_refusal(pinned, HOSTS, ["worker-0"], "a:0") == "a:0 is taken by evaluator-0"
    one_host = topology(
        "{name: w, role: worker, replicas: 1, gpus: 1}", "{name: e, role: evaluator, replicas: 1, gpus: 1, hosts: [a]}"
    )
    pinned = set_pins(one_host, {"evaluator-0": "a:0", "worker-0": "b:0"})
    assert drop_refusal(pinned, HOSTS, ["worker-0"], "a:0") == "a:0 is taken by evaluator-0"


def test_the_refusal_of_a_used_gpu_names_its_user() -> None:
    kims = replace(host("b", 2, busy=(1,)), gpu_users={"GPU-b-1": "kim"})
    assert drop_refusal(ONE_EACH, [kims], ["worker-0"], "b:1") == "b:1 is used by kim"


def test_too_few_slots_left_is_a_reason() -> None:
    assert drop_refusal(ONE_EACH, HOSTS, ["worker-0", "worker-1"], "a:3") == (
        "worker-1 takes 1 GPU; from a:4 on none is free"
    )


def test_an_unpinned_replica_in_the_slot_makes_way() -> None:
    assert drop_refusal(ONE_EACH, [host("a", 4)], ["worker-3"], "a:0") == ""


def test_what_would_cost_another_its_place_is_refused() -> None:
    # Only host b has enough space for the evaluator.
    two = topology("{name: w, role: worker, replicas: 1, gpus: 1}", "{name: e, role: evaluator, replicas: 1, gpus: 4}")
    assert drop_refusal(two, [host("a", 2), host("b", 4)], ["worker-0"], "b:1").startswith(
        "evaluator-0 would lose its place: evaluator-0 needs 4 GPUs"
    )


def test_a_new_replica_of_a_role() -> None:
    assert new_replica_refusal(ONE_EACH, HOSTS, Role.WORKER, "b:0") == ""
    assert new_replica_refusal(ONE_EACH, [host("a", 4)], Role.WORKER, "a").startswith("worker-3 would lose its place")
    assert new_replica_refusal(empty_topology("x"), [host("c")], Role.WORKER, "c", gpus=1).startswith(
        "on c, where it is pin"
    )
    chief = topology("{name: c, role: chief, replicas: 1}")
    assert new_replica_refusal(chief, HOSTS, Role.CHIEF, "") == "a run has one chief"


def test_pins_for_says_why_by_raising() -> None:
    with pytest.raises(UsageError):
        pins_for(ONE_EACH, HOSTS, ["worker-0"], "nowhere")
