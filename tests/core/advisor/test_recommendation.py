"""Tests of advice: which topologies are compared, which one is recommended, and when advice is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.advisor.samples import cpu_hosts, fleet, profile
from tests.core.examples import host, topology
from torchyard_core.advisor.candidates import Counts, Scan, counts_of, room_on, topology_for
from torchyard_core.advisor.corrections import Correction, Scope
from torchyard_core.advisor.fleet_hosts import advised_fleet
from torchyard_core.advisor.profile import ChosenProfiles
from torchyard_core.advisor.recommendation import Advice, advise
from torchyard_core.errors import RunFailed, UsageError
from torchyard_core.topology.file import check_topology
from torchyard_core.topology.model import Role, StrategyKind

WORKERS = "{name: workers, role: worker, replicas: 2, gpus: 1}"
CPU_WORKERS = "{name: workers, role: worker, replicas: 2}"
CPU_KINDS = ("64 CPUs",)
FAST, SLOW = "NVIDIA H100", "NVIDIA T4"


def on_cpus(count: int = 4, *, mbit: float = 200.0, compute_s: float = 0.5) -> Advice:
    hosts = cpu_hosts(count)
    return advise(topology(CPU_WORKERS), fleet(hosts, profile(compute_s=compute_s), mbit=mbit))


def test_every_strategy_is_considered_and_those_that_change_the_result_are_apart() -> None:
    found = on_cpus()
    assert {each.counts.kind for each in found.same_result} == {
        StrategyKind.ALL_REDUCE,
        StrategyKind.REDUCTION_SERVER,
        StrategyKind.SANDBLASTER,
    }
    assert {each.counts.kind for each in found.other_result} == {
        StrategyKind.DOWNPOUR,
        StrategyKind.HOGWILD,
        StrategyKind.DILOCO,
    }
    assert not found.fastest.changes_result
    assert found.other_result[0].prediction.samples_s > found.fastest.prediction.samples_s
    speeds = [each.prediction.samples_s for each in found.alternatives]
    assert speeds == sorted(speeds, reverse=True)
    assert found.current is not None
    assert found.current.counts == Counts(StrategyKind.ALL_REDUCE, 2)


def test_every_recommended_topology_is_valid_and_has_the_predicted_numbers() -> None:
    for each in on_cpus(6).alternatives:
        assert not [one for one in check_topology(each.topology) if one.severity == "error"]
        assert counts_of(each.topology) == each.counts


def test_fast_links_use_all_hosts_and_slow_links_only_as_many_as_help() -> None:
    fast = on_cpus(4, mbit=10_000)
    assert fast.fastest.counts.trainers == 4
    assert fast.next_host is None
    assert [point.trainers for point in fast.curve] == [1, 2, 3, 4]
    slow = on_cpus(4, mbit=20, compute_s=0.05)
    assert slow.fastest.counts.trainers == 1
    assert slow.next_host is not None
    assert slow.next_host < 0


def test_a_topology_that_is_faster_as_it_is_is_the_fastest_or_the_doubt_is_stated() -> None:
    crowded = topology("{name: workers, role: worker, replicas: 6}")
    found = advise(crowded, fleet(cpu_hosts(2), profile(compute_s=5.0), mbit=10_000))
    assert found.current is not None
    assert found.current.shares_cpus
    assert found.current.prediction.samples_s > found.fastest.prediction.samples_s
    assert any("its higher predicted speed is uncertain" in remark for remark in found.remarks)
    for workers in (1, 2, 3):
        chosen = topology(f"{{name: workers, role: worker, replicas: {workers}}}")
        found = advise(chosen, fleet(cpu_hosts(3), profile(), mbit=100))
        assert found.current is not None
        assert found.fastest.prediction.samples_s >= found.current.prediction.samples_s
        assert not any("its higher predicted speed is uncertain" in remark for remark in found.remarks)


def test_a_black_box_is_never_recommended_a_strategy_that_needs_distribute() -> None:
    servers = "{name: ps, role: ps, replicas: 4}"
    chosen = topology(CPU_WORKERS, servers, strategy="{kind: sandblaster}")
    found = advise(chosen, fleet(cpu_hosts(6), profile(black_box=True), mbit=50), is_black_box=True)
    recommended = (found.fastest, found.fewest, *found.alternatives)
    assert {each.counts.kind for each in recommended} == {StrategyKind.ALL_REDUCE}


def test_times_of_batches_that_were_not_measured_are_said_to_be_extrapolated() -> None:
    hosts, sizes = cpu_hosts(2), profile().sizes
    half = sizes[0].model_copy(update={"batch": 16})
    chosen = ChosenProfiles({"64 CPUs": profile().model_copy(update={"sizes": (*sizes, half)})}, ())
    inside, beyond = (advised_fleet(hosts, chosen, {}, {}, batch) for batch in (32, 64))
    assert not any("extrapolated" in remark for remark in inside.remarks)
    assert "Batches of 64 samples were not measured, only of at most 32:" in beyond.remarks[0]


def test_the_fewest_gpus_are_at_least_nearly_as_fast() -> None:
    hosts = tuple(host(f"host-{number}", 4, model=FAST) for number in range(3))
    found = advise(topology(WORKERS), fleet(hosts, profile(kind=FAST, is_gpu=True, compute_s=0.1), mbit=300))
    assert found.fewest.gpus <= found.fastest.gpus
    assert found.fewest.prediction.samples_s >= 0.9 * found.fastest.prediction.samples_s


def test_slow_gpus_are_left_out_where_they_would_hold_up_the_others() -> None:
    hosts = (host("slow", 2, model=SLOW), host("fast-a", 2, model=FAST), host("fast-b", 2, model=FAST))
    profiles = (profile(kind=SLOW, compute_s=5.0, is_gpu=True), profile(kind=FAST, compute_s=0.5, is_gpu=True))
    found = advise(topology(WORKERS), fleet(hosts, *profiles, mbit=10_000)).fastest
    assert {*found.hosts} == {"fast-a", "fast-b"}
    [pool] = [pool for pool in found.topology.pools if pool.role is Role.WORKER]
    assert {*pool.hosts} == {"fast-a", "fast-b"}


def test_hosts_of_kinds_without_a_profile_train_nothing_but_may_serve() -> None:
    hosts = (host("gpu", 2, model=FAST), host("cpu-a"), host("cpu-b"))
    found = advise(topology(WORKERS), fleet(hosts, profile(kind=FAST, is_gpu=True)))
    assert {name for each in found.alternatives for name in each.hosts} == {"gpu"}
    assert "were not profiled and train nothing here: cpu-a, cpu-b" in found.remarks[0]
    served = next(each for each in found.alternatives if each.counts.kind is StrategyKind.SANDBLASTER)
    assert "cpu-a" in served.prediction.bytes_by_host


def test_only_free_gpus_are_recommended_for_now() -> None:
    whole = tuple(host(f"host-{number}", 2, model=FAST) for number in range(2))
    free = (host("host-0", 2, model=FAST, busy=(0, 1)), host("host-1", 2, model=FAST, busy=(1,)))
    of = profile(kind=FAST, is_gpu=True)
    found = advise(topology(WORKERS), fleet(whole, of, mbit=10_000), available=fleet(free, of, mbit=10_000))
    assert found.fastest.counts.trainers == 4
    assert found.available is not None
    assert found.available.counts.trainers == 1
    assert found.available.hosts == ("host-1",)
    taken = tuple(host(f"host-{number}", 2, model=FAST, busy=(0, 1)) for number in range(2))
    assert advise(topology(WORKERS), fleet(whole, of), available=fleet(taken, of)).available is None


def test_no_feasible_topology_names_the_constraint() -> None:
    hosts = (host("host-0", 2, model=FAST),)
    pool = '{name: workers, role: worker, replicas: 2, gpus: 1, gpu_model: "A100"}'
    with pytest.raises(RunFailed, match=r"no topology is feasible: .*A100"):
        advise(topology(pool), fleet(hosts, profile(kind=FAST)))
    with pytest.raises(RunFailed, match="no host of the fleet is of a kind that was profiled"):
        advise(topology(WORKERS), fleet(hosts, profile(kind=SLOW)))
    small = (host("host-0", 2, model=FAST, memory_mb=100),)
    with pytest.raises(RunFailed, match="a trainer needs more memory than a GPU of host-0 has"):
        advise(topology(WORKERS), fleet(small, profile(kind=FAST, is_gpu=True)))


def test_what_cannot_be_predicted_is_refused() -> None:
    hosts = cpu_hosts(2)
    with pytest.raises(UsageError, match="launcher command is not predicted"):
        advise(topology(CPU_WORKERS, program="{launcher: command, command: [a]}"), fleet(hosts))
    with pytest.raises(UsageError, match="sharded models are not predicted"):
        advise(topology(CPU_WORKERS, strategy="{kind: all_reduce, shard: all}"), fleet(hosts))
    with pytest.raises(UsageError, match="there is no trainer"):
        advise(topology("{name: s, role: ps, replicas: 1}"), fleet(hosts))


def test_a_black_box_gets_advice_about_all_reduce_only() -> None:
    found = advise(topology(CPU_WORKERS), fleet(cpu_hosts(3), profile(black_box=True)), is_black_box=True)
    assert {each.counts.kind for each in found.alternatives} == {StrategyKind.ALL_REDUCE}
    assert "Only all-reduce is considered" in found.remarks[-1]


def test_settings_of_another_strategy_are_dropped_and_common_ones_kept() -> None:
    before = topology(
        "{name: chief, role: chief, replicas: 1}",
        "{name: workers, role: worker, replicas: 3, cpus: 2}",
        "{name: servers, role: ps, replicas: 2}",
        strategy="{kind: downpour, push_every: 2, on_nan: skip, worker_groups: 3}",
    )
    after = topology_for(before, Counts(StrategyKind.REDUCTION_SERVER, 6, 3))
    assert after.strategy.model_dump(exclude_unset=True) == {"kind": "reduction_server", "on_nan": "skip"}
    assert [(pool.role.value, pool.replicas) for pool in after.pools] == [("chief", 1), ("worker", 5), ("reducer", 3)]
    assert after.pools[1].cpus == 2
    alone = topology_for(before, Counts(StrategyKind.ALL_REDUCE, 1))
    assert [(pool.role.value, pool.replicas) for pool in alone.pools] == [("chief", 1)]


def test_corrections_change_the_selection_of_candidates_and_the_recommendation() -> None:
    hosts, script = cpu_hosts(6), topology(CPU_WORKERS)
    plain = fleet(hosts, profile(), mbit=200.0)
    slow = Correction(compute=2.0, exchange=2.0, runs=3)
    rings = {Scope(kind, CPU_KINDS): slow for kind in (StrategyKind.ALL_REDUCE, StrategyKind.REDUCTION_SERVER)}
    corrected = replace(plain, corrections=rings)
    kinds = (StrategyKind.ALL_REDUCE, StrategyKind.REDUCTION_SERVER, StrategyKind.SANDBLASTER)
    speeds = [
        {counts: speed for speed, counts in Scan(script, each, room_on(script, each)).candidates(kinds)}
        for each in (plain, corrected)
    ]
    for counts, speed in speeds[0].items():
        slower = 1.0 if counts.kind is StrategyKind.SANDBLASTER else 2.0
        assert speeds[1][counts] == pytest.approx(speed / slower)
    assert advise(script, plain).fastest.counts.kind is not StrategyKind.SANDBLASTER
    assert advise(script, corrected).fastest.counts.kind is StrategyKind.SANDBLASTER
    other_hosts = replace(plain, corrections={Scope(StrategyKind.ALL_REDUCE, ("8 CPUs",)): slow})
    assert advise(script, other_hosts) == advise(script, plain)


def test_hosts_have_the_cores_of_their_facts_and_share_those_of_a_computer_by_their_label() -> None:
    facts = (host("vm-1", cpus=2, labels={"computer": "rack-3"}), host("vm-2", cpus=2), replace(host("new"), cpus=None))
    found = fleet(facts, profile(kind="2 CPUs")).hosts
    assert [(each.cores, each.computer) for each in found] == [(2.0, "rack-3"), (2.0, ""), (None, "")]
