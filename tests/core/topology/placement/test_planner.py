from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from tests.core.examples import host, topology
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_core.topology.placement.planner import Placement, place

CHIEF = "{name: c, role: chief, replicas: 1, gpus: 1}"


def where(placement: Placement) -> dict[str, str]:
    """Returns the host and GPUs of each replica, in the form `host` or `host:0,1`."""
    return {
        name: slot.host + (":" + ",".join(str(gpu.index) for gpu in slot.gpus) if slot.gpus else "")
        for name, slot in placement.slots.items()
    }


def reasons(placement: Placement) -> list[str]:
    return [problem.message for problem in placement.problems]


def workers(count: int, more: str = "") -> str:
    return f"{{name: w, role: worker, replicas: {count}{', ' + more if more else ''}}}"


# Tests of the placements `pack` and `spread`


def test_pools_with_gpus_pack_into_as_few_hosts_as_can_be() -> None:
    placed = place(topology(workers(4, "gpus: 1")), [host("a", 2), host("b", 8), host("c", 4)])
    assert where(placed) == {f"worker-{index}": f"c:{index}" for index in range(4)}


def test_what_fits_no_single_host_fills_the_largest_first() -> None:
    placed = place(topology(workers(10, "gpus: 1")), [host("a", 2), host("b", 8), host("c", 4)])
    assert Counter(slot.host for slot in placed.slots.values()) == {"b": 8, "a": 2}


def test_spread_goes_round_the_hosts() -> None:
    placed = place(topology(workers(5, "gpus: 1, placement: spread")), [host("a", 4), host("b", 4), host("c", 1)])
    assert [slot.host for slot in placed.slots.values()] == ["a", "b", "c", "a", "b"]


def test_pools_without_gpus_spread_by_the_number_of_replicas() -> None:
    placed = place(topology(workers(3)), [host("a"), host("b"), host("c")])
    assert where(placed) == {"worker-0": "a", "worker-1": "b", "worker-2": "c"}


HERE = replace(host("this-computer", 8), address=None)


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
@pytest.mark.parametrize("pool", ["", "gpus: 1", "gpus: 1, placement: spread"])
def test_this_computer_takes_nothing_beside_remote_hosts(pool: str, order: int) -> None:
    placed = place(topology(workers(4, pool)), [HERE, host("a", 2), host("b", 2)][::order])
    assert Counter(slot.host for slot in placed.slots.values()) == {"a": 2, "b": 2}


def test_this_computer_takes_what_is_pinned_there_and_what_its_pool_names_it_for() -> None:
    pinned = place(topology(workers(2, "gpus: 1"), pins="{worker-1: this-computer}"), [HERE, host("a", 2)])
    assert where(pinned) == {"worker-0": "a:0", "worker-1": "this-computer:0"}
    named = place(topology(workers(2, "gpus: 1, hosts: [this-computer]")), [HERE, host("a", 2)])
    assert {slot.host for slot in named.slots.values()} == {"this-computer"}


def test_this_computer_takes_all_as_the_only_host() -> None:
    assert len(place(topology(workers(2, "gpus: 1")), [HERE]).slots) == 2


def test_what_only_this_computer_could_take_says_how_to_put_it_there() -> None:
    placed = place(topology(workers(2, "gpus: 1")), [HERE, host("a")])
    assert reasons(placed) == [
        "worker-0 and worker-1 each need 1 GPU; no host has any; this-computer is used beside remote hosts only where "
        "a pin or the pool's `hosts` name it"
    ]


def test_pools_without_gpus_pack_if_their_placement_says_so() -> None:
    placed = place(topology(workers(3, "placement: pack")), [host("a"), host("b")])
    assert set(where(placed).values()) == {"a"}


def test_the_order_of_a_pool_s_hosts_counts() -> None:
    placed = place(topology(workers(2, "hosts: [c, a]")), [host("a"), host("b"), host("c")])
    assert where(placed) == {"worker-0": "c", "worker-1": "a"}


def test_the_same_question_has_the_same_answer() -> None:
    asked = topology(CHIEF, workers(9, "gpus: 2"), "{name: s, role: ps, replicas: 3}", strategy="{kind: downpour}")
    hosts = [host("a", 8), host("b", 4), host("c", 8), host("d")]
    assert {tuple(where(place(asked, hosts)).items()) for _ in range(5)} == {tuple(where(place(asked, hosts)).items())}


def test_the_chief_is_packed_near_its_workers() -> None:
    placed = place(topology(CHIEF, workers(4, "gpus: 1")), [host("small", 2), host("big", 8), host("mid", 5)])
    assert {slot.host for slot in placed.slots.values()} == {"mid"}


def test_a_chief_without_gpus_goes_where_most_workers_are() -> None:
    chief = "{name: c, role: chief, replicas: 1}"
    placed = place(topology(chief, workers(3, "gpus: 2")), [host("cpu"), host("a", 2), host("b", 4)])
    assert placed.slots["chief-0"].host == "b"


def test_servers_avoid_hosts_with_gpus() -> None:
    servers = "{name: s, role: ps, replicas: 3}"
    asked = topology(workers(1, "gpus: 1"), servers, strategy="{kind: downpour}")
    assert {name: slot.host for name, slot in place(asked, [host("gpu", 1), host("cpu")]).slots.items()} == {
        "worker-0": "gpu",
        "ps-0": "cpu",
        "ps-1": "cpu",
        "ps-2": "cpu",
    }
    assert set(where(place(asked, [host("gpu", 1)])).values()) == {"gpu:0", "gpu"}


def test_servers_with_cpus_overflow_onto_hosts_with_gpus() -> None:
    servers = "{name: s, role: reducer, replicas: 3, cpus: 4}"
    asked = topology(workers(1, "gpus: 1"), servers, strategy="{kind: reduction_server}")
    placed = place(asked, [host("gpu", 1, cpus=8), host("cpu", cpus=8)])
    assert [placed.slots[f"reducer-{index}"].host for index in range(3)] == ["cpu", "cpu", "gpu"]


def test_those_with_little_to_choose_from_come_first() -> None:
    asked = topology(workers(2, "gpus: 1"), "{name: e, role: evaluator, replicas: 1, gpus: 1, labels: {rack: r1}}")
    placed = place(asked, [host("a", 2, labels={"rack": "r1"}), host("b", 1)])
    assert placed.problems == ()
    assert placed.slots["evaluator-0"].host == "a"


# Tests of a pool's requirements on hosts and GPUs


def test_a_gpu_model_is_part_of_the_name_whatever_the_capitals() -> None:
    hosts = [host("v", 4, model="Tesla V100"), host("a", 4, model="NVIDIA A100-SXM4-40GB")]
    placed = place(topology(workers(2, "gpus: 1, gpu_model: a100")), hosts)
    assert {slot.host for slot in placed.slots.values()} == {"a"}


@pytest.mark.parametrize(("memory_mb", "fits"), [(40536, True), (24564, False), (38000, False)])
def test_a_gpu_sold_as_40_gb_has_40_gb(memory_mb: int, fits: bool) -> None:
    placed = place(topology(workers(1, "gpus: 1, gpu_memory_gb: 40")), [host("a", 1, memory_mb=memory_mb)])
    assert bool(placed.slots) is fits


def test_labels_must_all_match() -> None:
    hosts = [host("a", labels={"rack": "r1"}), host("b", labels={"rack": "r1", "net": "ib"})]
    placed = place(topology(workers(1, "labels: {rack: r1, net: ib}")), hosts)
    assert where(placed) == {"worker-0": "b"}


def test_cpus_and_memory_are_set_aside() -> None:
    placed = place(topology(workers(4, "cpus: 2, memory_gb: 10")), [host("a", cpus=4), host("b", memory_gb=30)])
    assert Counter(slot.host for slot in placed.slots.values()) == {"a": 2, "b": 2}


def test_replicas_without_cpus_reserve_none() -> None:
    assert len(place(topology(workers(50)), [host("a", cpus=2)]).slots) == 50


def test_users_of_gpus_are_named_where_none_is_free() -> None:
    kims = replace(host("a", 2, busy=(0, 1)), gpu_users={"GPU-a-0": "kim", "GPU-a-1": "kim"})
    placed = place(topology(workers(1, "gpus: 1"), pins="{}"), [kims])
    assert reasons(placed) == ["worker-0 needs 1 GPU; all of them are taken (2 used by kim)"]
    pinned = place(topology(workers(1, "gpus: 1"), pins="{worker-0: 'a:1'}"), [kims])
    assert reasons(pinned) == ["worker-0 is pinned to a:1, which kim is using"]


def test_busy_gpus_are_left_alone() -> None:
    placed = place(topology(workers(2, "gpus: 1")), [host("a", 4, busy=(0, 2))])
    assert where(placed) == {"worker-0": "a:1", "worker-1": "a:3"}


# Tests of placing pinned replicas


def test_a_pin_to_gpus_is_kept_in_its_order() -> None:
    placed = place(topology(workers(2, "gpus: 2"), pins="{worker-1: 'b:3,1'}"), [host("a", 2), host("b", 4)])
    assert where(placed)["worker-1"] == "b:3,1"


def test_a_pin_to_a_host_leaves_gpus_that_others_are_pinned_to() -> None:
    asked = topology(workers(3, "gpus: 1"), pins="{worker-0: a, worker-2: 'a:0'}")
    assert where(place(asked, [host("a", 2), host("b", 2)])) == {
        "worker-2": "a:0",
        "worker-0": "a:1",
        "worker-1": "b:0",
    }


@pytest.mark.parametrize("pin", ["a:*", "a"])
def test_a_pin_to_all_of_a_host_gives_what_the_pool_takes(pin: str) -> None:
    assert where(place(topology(workers(1, "gpus: 2"), pins=f"{{worker-0: '{pin}'}}"), [host("a", 4)])) == {
        "worker-0": "a:0,1"
    }


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        ("a:0", "worker-0 is pinned to a:0, which another user is using"),
        ("a:9", "worker-0 is pinned to a:9, which does not exist"),
        ("z", "worker-0 is pinned to z, which the fleet does not have"),
        ("b", "on b, where it is pinned, worker-0 needs 1 GPU; no host has any"),
        ("a:b:c", "worker-0 cannot be placed: in 'a:b:c' the GPUs must be numbers"),
    ],
)
def test_a_pin_that_cannot_be_kept_says_why_and_is_not_moved(pin: str, reason: str) -> None:
    asked = topology(workers(2, "gpus: 1"), pins=f"{{worker-0: '{pin}'}}")
    placed = place(asked, [host("a", 2, busy=(0,)), host("b")])
    assert where(placed) == {"worker-1": "a:1"}
    assert reasons(placed)[0].startswith(reason)
    assert placed.problems[0].path == "pins.worker-0"


# Tests of pools that name a machine type


def test_a_machine_type_stands_for_its_sizes_where_the_pool_says_none() -> None:
    small, large = host("small", cpus=4, memory_gb=14.7), host("large", cpus=16, memory_gb=62.8)
    assert where(place(topology(workers(1, "machine: standard")), [small])) == {"worker-0": "small"}
    assert where(place(topology(workers(2, "machine: n1-standard-8")), [small, large])) == {
        "worker-0": "large",
        "worker-1": "large",
    }
    [reason] = reasons(place(topology(workers(1, "machine: complex_model_m")), [small]))
    assert reason == "worker-0 needs 16 CPUs (machine complex_model_m); the most any host has free is 4 (on small)"


def test_what_a_pool_says_itself_counts_before_its_machine_type() -> None:
    asked = topology(workers(1, "machine: n1-highmem-8, cpus: 2, memory_gb: 4"))
    assert where(place(asked, [host("small", cpus=4, memory_gb=14.7)])) == {"worker-0": "small"}
    [reason] = reasons(place(topology(workers(1, "machine: n1-highmem-8, cpus: 9")), [host("small", cpus=4)]))
    assert reason.startswith("worker-0 needs 9 CPUs; ")


def test_a_machine_type_stands_for_its_gpus_model() -> None:
    hosts = [host("a", 4), host("p", 2, model="Tesla P100-PCIE-16GB")]
    asked = topology(workers(1, "gpus: 1, machine: standard_p100"))
    assert where(place(asked, hosts)) == {"worker-0": "p:0"}
    assert reasons(place(asked, hosts[:1])) == ["worker-0 needs 1 P100 GPU (machine standard_p100); no host has any"]


@pytest.mark.parametrize("rule", ["pack", "spread"])
def test_hosts_labelled_with_the_machine_type_come_first(rule: str) -> None:
    named = {"machine": "n1-highcpu-16"}
    hosts = [host("a", 4), host("b", 2, labels=named), host("c", 2, labels={"machine": "other"})]
    asked = topology(
        CHIEF.replace("}", ", hosts: [a]}"), workers(3, f"gpus: 1, machine: n1-highcpu-16, placement: {rule}")
    )
    used = Counter(slot.host for name, slot in place(asked, hosts).slots.items() if name != "chief-0")
    assert used["b"] == 2
    # CloudML calls this machine type complex_model_m.
    servers = "{name: s, role: ps, replicas: 1, machine: complex_model_m}"
    placed = place(topology(workers(1), servers), [host("cpu"), *hosts])
    assert placed.slots["ps-0"].host == "b"


def test_an_unknown_machine_type_requires_only_its_label() -> None:
    assert where(place(topology(workers(1, "machine: our-box")), [host("a", cpus=1)])) == {"worker-0": "a"}
    hosts = [host("a"), host("b", labels={"machine": "our-box"})]
    assert where(place(topology(workers(1, "machine: our-box")), hosts)) == {"worker-0": "b"}


def test_a_host_sold_as_64_gb_has_64_gb() -> None:
    asked = topology(workers(4, "memory_gb: 16"))
    assert len(place(asked, [host("a", memory_gb=62.8)]).slots) == 4
    [reason] = reasons(place(topology(workers(5, "memory_gb: 16")), [host("a", memory_gb=62.8)]))
    assert reason == "worker-4 needs 16 GB of memory; the most any host has free is 3.2 GB (on a)"


# Tests of plans that place as many replicas as possible


EVALUATOR = "{name: e, role: evaluator, replicas: 1, gpus: "


@pytest.mark.parametrize(
    ("pools", "gpus"),
    [
        ((CHIEF, workers(2, "gpus: 8")), (8, 8, 1)),
        ((workers(3, "gpus: 1"), EVALUATOR + "3}"), (4, 2)),
        ((workers(4, "gpus: 1, placement: spread"), EVALUATOR + "4}"), (4, 4)),
        (
            (workers(1, "gpus: 1, hosts: [h1, h0]"), EVALUATOR.replace("1, gpus", "2, gpus") + "1, hosts: [h1, h2]}"),
            (1, 1, 1),
        ),
    ],
)
def test_no_replica_is_left_out_because_of_the_order_of_pools(pools: tuple[str, ...], gpus: tuple[int, ...]) -> None:
    placed = place(topology(*pools), [host(f"h{index}", count) for index, count in enumerate(gpus)])
    assert placed.problems == ()


def test_trainers_count_before_evaluators_where_not_all_fit() -> None:
    asked = topology(workers(4, "gpus: 1"), EVALUATOR.replace("1, gpus", "5, gpus") + "1, hosts: [a]}")
    placed = place(asked, [host("a", 4)])
    assert [name for name in placed.slots if name.startswith("worker")] == [f"worker-{index}" for index in range(4)]
    assert [problem.path for problem in placed.problems] == ["pools.e"]


def test_a_chief_joins_most_of_its_workers_where_they_are_pinned_or_have_less_choice() -> None:
    asked = topology(CHIEF, workers(3, "gpus: 1"), pins="{worker-0: a, worker-1: b, worker-2: b}")
    assert where(place(asked, [host("a", 2), host("b", 8)]))["chief-0"] == "b:0"
    asked = topology(CHIEF, workers(3, "gpus: 1"), pins="{worker-0: a, worker-1: a, worker-2: a}")
    assert where(place(asked, [host("a", 4), host("b", 4), host("c", 8)]))["chief-0"] == "a:0"
    asked = topology(CHIEF, workers(3, "gpus: 1"), pins="{worker-0: b, worker-1: b, worker-2: b}")
    assert where(place(asked, [host("a", 4), host("b", 4), host("c", 8)]))["chief-0"] == "b:3"
    asked = topology(CHIEF, workers(3, "gpus: 1, hosts: [b]"))
    assert where(place(asked, [host("a", 4), host("b", 8)]))["chief-0"] == "b:3"


# Tests of placing the other replicas when some are pinned

FLEET = [host(f"h{number:02}", 8) for number in range(26)]


def moved(before: Placement, after: Placement) -> set[str]:
    was, now = where(before), where(after)
    return {name for name in was if was[name] != now[name]}


@pytest.mark.parametrize(
    ("pin", "also"),
    [("h03:4", {"worker-28"}), ("h25:0", set()), ("h25", set()), ("h03", {"worker-31"}), ("h00:0", set())],
    ids=["another's GPU", "a free GPU", "a host with room", "a full host", "its own GPU"],
)
def test_a_pin_moves_no_others_than_the_replica_that_it_displaces(pin: str, also: set[str]) -> None:
    free, pinned = (topology(workers(200, "gpus: 1"), pins=pins) for pins in ("{}", f"{{worker-0: '{pin}'}}"))
    before, after = place(free, FLEET), place(pinned, FLEET)
    assert moved(before, after) - {"worker-0"} == also
    # The displaced replica gets the GPU that the pinned replica would have without its pin.
    assert {where(after)[name] for name in also} <= {where(before)["worker-0"]}


def test_a_spread_stays_even_around_a_pin() -> None:
    servers, fleet = "{name: s, role: ps, replicas: 4}", [host("a"), host("b")]
    free = place(topology(workers(1), servers), fleet)
    home = free.slots["ps-0"].host
    assert where(place(topology(workers(1), servers, pins=f"{{ps-0: {home}}}"), fleet)) == where(free)
    pinned = place(topology(workers(1), servers, pins=f"{{ps-1: {home}}}"), fleet)
    assert Counter(slot.host for name, slot in pinned.slots.items() if name.startswith("ps")) == {"a": 2, "b": 2}
    assert moved(free, pinned) == {"ps-1", "ps-2"}


def test_the_plan_of_many_pins_does_not_depend_on_their_order() -> None:
    pins = {"worker-3": "h01:2", "worker-10": "h00:3", "worker-5": "h25"}
    asked = topology(workers(200, "gpus: 1"))
    orders = (pins, dict(reversed(pins.items())))
    placed = [place(asked.model_copy(update={"pins": order}), FLEET) for order in orders]
    assert where(placed[0]) == where(placed[1])
    # worker-3 and worker-10 swap places.
    assert moved(place(asked, FLEET), placed[0]) == set(pins)


def test_replicas_leave_home_where_staying_would_cost_another_its_place() -> None:
    # If worker-0 and worker-1 stayed on host a, no host would have two free GPUs for the evaluator.
    asked = topology(
        workers(3, "gpus: 1"), "{name: e, role: evaluator, replicas: 1, gpus: 2}", pins="{worker-2: 'b:0'}"
    )
    assert where(place(asked, [host("a", 3), host("b", 2)])) == {
        "worker-0": "b:1", "worker-1": "a:0", "worker-2": "b:0", "evaluator-0": "a:1,2",
    }  # fmt: skip


# Tests of the reasons why replicas do not fit


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        (
            workers(4, "gpus: 2, gpu_memory_gb: 40"),
            "worker-3 needs 2 GPUs of ≥ 40 GB; the most any host has free is 1 (on b)",
        ),
        (workers(6, "gpus: 1, gpu_model: H100"), "worker-0 to worker-5 each need 1 H100 GPU; no host has any"),
        (workers(8, "gpus: 1"), "worker-7 needs 1 GPU; all of them are taken"),
        (workers(1, "labels: {rack: r9}"), "worker-0 needs a host labelled rack=r9; the fleet has none"),
        (workers(2, "hosts: [z]"), "worker-0 and worker-1 each need one of the hosts z; the fleet has none"),
        (workers(1, "cpus: 65"), "worker-0 needs 65 CPUs; the most any host has free is 64 (on a)"),
        (workers(1, "memory_gb: 500"), "worker-0 needs 500 GB of memory; the most any host has free is 250 GB (on a)"),
        (
            workers(5, "cpus: 40, memory_gb: 1"),
            "worker-3 and worker-4 each need 40 CPUs; the most any host has free is 24 (on a)",
        ),
    ],
)
def test_the_answer_is_partial_and_says_what_is_missing(pool: str, reason: str) -> None:
    placed = place(topology(pool), [host("a", 2), host("b", 3), host("c", 2)])
    assert reasons(placed) == [reason]
    assert [problem.code for problem in placed.problems] == ["no-room"]


def test_a_combination_that_no_host_has_is_named() -> None:
    hosts = [host("a", 4, cpus=1), host("b", cpus=64)]
    [reason] = reasons(place(topology(workers(1, "gpus: 1, cpus: 8")), hosts))
    assert reason == "worker-0 needs 1 GPU and 8 CPUs; no host has all of it free at once"


def test_an_empty_fleet_says_what_to_do() -> None:
    [reason] = reasons(place(topology(workers(2)), []))
    assert reason.endswith("the fleet has no hosts")


def test_the_problem_is_at_the_pool_s_line() -> None:
    placed = place(
        topology(workers(1, "gpus: 1")), [host("a")], line=lambda place: 7 if place == ("pools", 0) else None
    )
    assert [(problem.line, problem.path) for problem in placed.problems] == [(7, "pools.w")]


# Tests of hosts that have never been checked


def test_a_host_that_was_never_checked_counts_as_able_with_a_warning() -> None:
    placed = place(topology(workers(2, "gpus: 4, cpus: 99")), [HostFacts("new")])
    assert where(placed) == {"worker-0": "new:0,1,2,3", "worker-1": "new:4,5,6,7"}
    assert [(problem.severity, problem.code) for problem in placed.problems] == [("warning", "unchecked-host")]


def test_gpus_of_an_unchecked_host_are_named_after_it() -> None:
    asked = topology(workers(2, "gpus: 1"), pins="{worker-1: 'new:0'}")
    placed = place(asked, [HostFacts("new")])
    assert [placed.slots[f"worker-{index}"].gpus[0].uuid for index in (0, 1)] == ["new:1", "new:0"]


def test_packing_prefers_hosts_that_are_known_and_spreads_over_those_that_are_not() -> None:
    mixed = place(topology(workers(2, "gpus: 1")), [HostFacts("new"), host("a", 2)])
    assert {slot.host for slot in mixed.slots.values()} == {"a"}
    unknown = place(topology(workers(2, "gpus: 1")), [HostFacts("new"), HostFacts("newer")])
    assert {slot.host for slot in unknown.slots.values()} == {"new", "newer"}


# Tests of the time to plan large topologies


@pytest.mark.parametrize("more", ["gpus: 1", "gpus: 1, placement: spread", "cpus: 4", "machine: standard", ""])
def test_a_thousand_replicas_on_256_hosts_take_half_a_second_at_most(more: str) -> None:
    asked: Topology = topology(workers(1000, more))
    hosts = [host(f"h{index}", 8) for index in range(256)]
    began = time.process_time()
    placed = place(asked, hosts)
    assert time.process_time() - began < 0.5
    assert (len(placed.slots), placed.problems) == (1000, ())
    used = [gpu.uuid for slot in placed.slots.values() for gpu in slot.gpus]
    assert len(used) == len(set(used))


def test_a_thousand_replicas_that_fit_nowhere_are_one_sentence() -> None:
    placed = place(topology(workers(1000, "gpus: 8")), [host(f"h{index}", 4) for index in range(256)])
    assert len(placed.problems) == 1
