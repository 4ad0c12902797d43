"""Tests predictions: the simulation against closed forms, bytes against formulas, and the named bottleneck."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from random import Random
from statistics import fmean, pstdev

import pytest

from tests.core.advisor.samples import MEGABIT, advised, profile
from torchyard_core.advisor.corrections import Correction, Ratios, Scope, corrections_of
from torchyard_core.advisor.exchange_load import push_connections
from torchyard_core.advisor.prediction import AdvisedHost, Layout, Prediction, predict
from torchyard_core.advisor.trainer_compute import trainer_compute
from torchyard_core.topology.model import Strategy, StrategyKind

M = 60e6
B = 200 * MEGABIT
DRAWN = 300


def layout(kind: str, trainers: int, servers: int = 0, groups: int = 1, **settings: object) -> Layout:
    """Returns a layout with each replica on a separate host."""
    each = trainers // groups
    hosts = [tuple(range(number * each, (number + 1) * each)) for number in range(groups)]
    strategy = Strategy(kind=StrategyKind(kind), **settings)
    return Layout(strategy, tuple(hosts), tuple(range(trainers, trainers + servers)))


def predicted(chosen: Layout, *, compute_s: float = 0.001, spread_s: float = 0.0, mbit: float = 200.0) -> Prediction:
    count = len(chosen.trainers) + len(chosen.servers)
    return predict(chosen, advised(count, mbit=mbit, of=profile(compute_s=compute_s, spread_s=spread_s)))


EXCHANGES = [
    (layout("all_reduce", 4), 2 * M * 3 / 4),
    (layout("all_reduce", 8), 2 * M * 7 / 8),
    (layout("sandblaster", 4, 4), M),
    (layout("sandblaster", 4, 1), 4 * M),
    (layout("reduction_server", 4, 4), M),
    (layout("reduction_server", 4, 2), 2 * 4 * 3 * M / (16 + 8 - 4)),
    (layout("reduction_server", 8, 8), M),
    (layout("downpour", 4, 1, 4), 4 * M),
    (layout("diloco", 4, 0, 4, inner_steps=1), 2 * M * 3 / 4),
]


@pytest.mark.parametrize(("chosen", "size"), EXCHANGES, ids=lambda value: str(value)[:60])
def test_an_exchange_takes_little_longer_than_the_closed_form(chosen: Layout, size: float) -> None:
    found = predicted(chosen)
    assert found.step_s >= found.bound_s > 0
    assert found.step_s == pytest.approx(size / B, rel=0.16)
    assert found.step_s > size / B
    busiest = max(max(both) for both in found.bytes_by_host.values())
    assert busiest == pytest.approx(size, rel=1e-6)
    assert "link of host-" in found.bottleneck


@pytest.mark.parametrize(("groups", "servers", "measured"), [(2, 1, 1.23), (3, 2, 1.20), (5, 2, 1.10), (6, 2, 1.13)])
def test_the_links_of_servers_idle_more_if_fewer_groups_use_them(groups: int, servers: int, measured: float) -> None:
    """`measured` is the step of a run outside the proof, as a multiple of the transfer time over a server's link."""
    step_s = predicted(layout("downpour", groups, servers, groups)).step_s
    assert step_s / (groups / servers * M / B) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize("kind", ["all_reduce", "reduction_server", "sandblaster", "downpour", "hogwild", "diloco"])
def test_steps_that_compute_long_are_as_long_as_their_computing(kind: str) -> None:
    servers = 4 if kind in ("reduction_server", "sandblaster", "downpour") else 0
    groups = 4 if kind in ("downpour", "hogwild", "diloco") else 1
    found = predicted(layout(kind, 4, servers, groups, bucket_mb=4), compute_s=60.0)
    hidden = 60.0 if kind != "sandblaster" else 60.0 + M / B
    assert found.step_s == pytest.approx(hidden, rel=0.02)
    assert found.bound_s <= found.step_s
    assert found.bottleneck.startswith("computing on host-0")
    assert found.samples_s == pytest.approx(4 * 32 / found.step_s)
    assert found.low < found.samples_s < found.high


def on_one_host(kind: str, trainers: int, servers: int) -> Layout:
    groups = [(0,)] * trainers if kind in ("downpour", "hogwild", "diloco") else [(0,) * trainers]
    serves = kind in ("sandblaster", "downpour", "reduction_server")
    return Layout(Strategy(kind=StrategyKind(kind)), tuple(groups), (0,) * servers if serves else ())


@pytest.mark.parametrize("kind", ["all_reduce", "reduction_server", "sandblaster", "downpour", "hogwild", "diloco"])
@pytest.mark.parametrize("megabytes", [0.01, 60, 400])
@pytest.mark.parametrize("compute_s", [0.001, 0.02, 0.2])
def test_the_bottleneck_on_one_host_is_no_link_and_belongs_to_the_longest_part(
    kind: str, megabytes: float, compute_s: float
) -> None:
    for trainers, servers in ((2, 1), (4, 2)):
        of = profile(compute_s=compute_s, megabytes=megabytes, spread_s=compute_s / 10, optimizer_s=compute_s / 20)
        found = predict(on_one_host(kind, trainers, servers), advised(1, of=of))
        assert "link" not in found.bottleneck
        assert not found.bytes_by_host
        overlaps = kind not in ("sandblaster", "all_reduce", "reduction_server")
        if found.exchange_s > found.compute_s:
            assert found.bottleneck.startswith(("CPU of host-0", "small messages"))
        elif not overlaps and found.exchange_s < found.compute_s / 2:
            assert found.bottleneck.startswith("computing on host-0")


def test_the_bottleneck_of_sandblaster_belongs_to_the_longest_part_even_if_its_links_share_it() -> None:
    # Pushes and pulls take longer together than computing, and each of them less.
    of = profile(compute_s=0.0, spread_s=0.0)
    exchange_s = predict(layout("sandblaster", 4, 4), advised(8, of=of)).exchange_s
    of = profile(compute_s=0.97 * exchange_s, spread_s=0.0)
    found = predict(layout("sandblaster", 4, 4), advised(8, of=of))
    assert found.exchange_s > found.compute_s
    assert found.bottleneck.startswith("link of host-")


@pytest.mark.parametrize(
    ("every", "note"),
    [
        (1, ("The links are so slow that groups exchange every 8 updates and not after each.",)),
        (4, ("The links are so slow that groups exchange every 8 updates and not every 4.",)),
        (20, ()),
    ],
)
def test_hogwild_never_waits_for_an_exchange(every: int, note: tuple[str, ...]) -> None:
    found = predicted(layout("hogwild", 4, 0, 4, sync_every=every), compute_s=0.5)
    assert found.step_s == pytest.approx(0.5, rel=0.1)
    assert found.notes == note
    for sent, received in found.bytes_by_host.values():
        assert sent == received <= 1.0001 * B * found.step_s


def test_the_slowest_of_noisy_trainers_extends_synchronous_steps_only() -> None:
    calm, noisy = (predicted(layout("all_reduce", 8), compute_s=20, spread_s=each) for each in (0.0, 2.0))
    spread = 2.0 * sqrt(20 / 19)  # The profile has the standard deviation of its 20 steps from their own mean.
    assert noisy.step_s - calm.step_s == pytest.approx(1.4236 * spread, rel=0.001)
    assert noisy.wait_s == pytest.approx(1.4236 * spread, rel=0.001)
    calm, noisy = (predicted(layout("downpour", 8, 8, 8), compute_s=20, spread_s=each) for each in (0.0, 2.0))
    assert noisy.step_s == pytest.approx(calm.step_s)


CORES = [
    layout("reduction_server", 5, 2),
    layout("sandblaster", 4, 4),
    layout("all_reduce", 8),
    layout("downpour", 6, 4, 6),
    layout("diloco", 7, 0, 7, inner_steps=4),
]


@pytest.mark.parametrize("chosen", CORES, ids=lambda value: value.strategy.kind.value)
def test_hosts_that_share_the_cores_of_a_computer_exchange_no_faster_than_these(chosen: Layout) -> None:
    hosts = advised(len(chosen.trainers) + len(chosen.servers), mbit=400.0, of=profile(megabytes=40.0))
    free = predict(chosen, hosts)
    own = predict(chosen, [replace(host, cores=16.0) for host in hosts])
    assert own.step_s == pytest.approx(free.step_s, rel=1e-6)
    shared = predict(chosen, [replace(host, cores=0.1, computer="lab") for host in hosts])
    assert shared.step_s > 2 * free.step_s
    assert shared.bottleneck.startswith("CPU cores of lab, ")
    fewer = predict(chosen, [replace(host, cores=0.05, computer="lab") for host in hosts])
    assert fewer.step_s == pytest.approx(2 * shared.step_s, rel=0.35)


def test_slow_cores_delay_an_exchange_in_small_chunks_more() -> None:
    def step_s(chosen: Layout, chunk_cpu_s: float) -> float:
        compute = replace(trainer_compute(profile(megabytes=40.0)), chunk_cpu_s=chunk_cpu_s)
        count = len(chosen.trainers) + len(chosen.servers)
        hosts = [AdvisedHost(f"h{each}", compute, 400 * MEGABIT, cores=2.0, computer="lab") for each in range(count)]
        return predict(chosen, hosts).step_s

    mixed, reducers = layout("reduction_server", 5, 2), layout("reduction_server", 3, 4)
    fast, slow = (step_s(mixed, each) for each in (100e-6, 1e-3))
    assert slow > 1.5 * fast, "trainers that sum exchange chunks of less than 48 KiB"
    assert slow - fast > 2 * (step_s(reducers, 1e-3) - step_s(reducers, 100e-6))
    assert step_s(layout("all_reduce", 5), 1e-3) == step_s(layout("all_reduce", 5), 100e-6)


def test_a_link_is_shared_by_the_connections_to_all_other_hosts_of_an_exchange() -> None:
    assert push_connections([0, 0, 1], {2: 0.5, 3: 0.5}) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert push_connections([0, 1, 2], {0: 0.2, 1: 0.2, 2: 0.2, 3: 0.4}) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert push_connections([0], {0: 1.0}) == {0: 0}


def test_diloco_reaches_the_utilisation_of_its_closed_form() -> None:
    found = predicted(layout("diloco", 4, 0, 4, inner_steps=50), compute_s=0.5)
    assert pytest.approx(0.874, abs=1e-3) == 0.5 / (0.5 + 2 * M * 3 / (4 * B * 50))
    assert found.utilisation["float32"][50] == pytest.approx(0.874, abs=0.02)
    assert found.utilisation["int8"][50] > 0.94
    assert found.utilisation["float32"][10] < 0.6
    streaming = predicted(layout("diloco", 4, 0, 4, inner_steps=50, fragments=8, overlap_steps=2), compute_s=0.5)
    assert 0.51 / streaming.step_s > 0.97


def test_a_slow_link_is_named_and_determines_the_step() -> None:
    hosts = advised(4, mbit=[200, 200, 50, 200], of=profile(compute_s=0.1))
    found = predict(layout("all_reduce", 4), hosts)
    assert found.step_s == pytest.approx(2 * M * 3 / 4 / (50 * MEGABIT), rel=0.12)
    assert found.bottleneck.startswith("link of host-2, ")
    # In a ring, 1.5 times the gradients cross the slow link in each direction. With servers on other hosts, the
    # gradients cross it only once.
    assert predict(layout("sandblaster", 4, 4), [*hosts, *advised(4)]).step_s < found.step_s


def test_reducers_that_cannot_beat_the_ring_are_said_to_be_idle() -> None:
    found = predicted(layout("reduction_server", 4, 1))
    assert not found.notes or "Reducers and trainers both sum" in found.notes[0]
    assert predicted(layout("reduction_server", 2, 2)).notes == (
        "A ring is faster here, so that the reducers would be idle.",
    )


def test_ranks_of_one_host_exchange_without_its_link() -> None:
    hosts = advised(2, of=profile(compute_s=0.1, is_gpu=True))
    one = Layout(Strategy(kind=StrategyKind.ALL_REDUCE), ((0,),), ranks=4)
    two = Layout(Strategy(kind=StrategyKind.ALL_REDUCE), ((0, 1),), ranks=4)
    assert predict(one, hosts).bytes_by_host == {}
    assert predict(one, hosts).step_s == pytest.approx(0.13, abs=0.03)
    sent, received = predict(two, hosts).bytes_by_host["host-0"]
    assert sent == received == pytest.approx(2 * M * 7 / 8)


def test_memory_that_is_missing_makes_a_topology_infeasible() -> None:
    compute = trainer_compute(profile(is_gpu=True))
    small = AdvisedHost("small", compute, B, memory_bytes=1e12, gpu_bytes=200e6)
    found = predict(Layout(Strategy(kind=StrategyKind.ALL_REDUCE), ((0,),)), [small])
    assert found.shortage == "a trainer needs more memory than a GPU of small has"
    server = AdvisedHost("server", None, B, memory_bytes=100e6)
    large = AdvisedHost("large", compute, B, 1e12, 80e9)
    found = predict(Layout(Strategy(kind=StrategyKind.SANDBLASTER), ((0,),), (1,)), [large, server])
    assert found.shortage == "the replicas on server need more memory than it has"


def test_a_correction_scales_the_parts_of_a_step_and_what_follows_from_them() -> None:
    ring, hosts = layout("all_reduce", 4), advised(4, mbit=600.0, of=profile(spread_s=0.1))
    plain = predict(ring, hosts)
    found = predict(ring, hosts, Correction(compute=1.5, exchange=0.5, runs=1))
    assert found.compute_s == pytest.approx(1.5 * plain.compute_s)
    assert found.wait_s == pytest.approx(1.5 * plain.wait_s)
    assert found.exchange_s == pytest.approx(0.5 * plain.exchange_s)
    assert found.step_s == pytest.approx(found.compute_s + found.wait_s + found.exchange_s)
    assert found.samples_s * found.step_s == pytest.approx(plain.samples_s * plain.step_s)
    assert found.low < found.samples_s < found.high
    assert found.bound_s <= found.step_s
    assert plain.bottleneck.startswith("link of")
    much = predict(ring, hosts, Correction(compute=2.0, exchange=0.5, runs=1))
    assert much.bottleneck.startswith("computing on")


def test_the_interval_covers_the_errors_of_a_short_profile_and_of_a_short_run() -> None:
    """Draws profiles and runs of noisy trainers whose speed is known, without any exchange."""
    random = Random(7)
    inside = 0
    for _ in range(DRAWN):
        measured = [random.gauss(1.0, 0.1) for _ in range(6)]
        short = profile(compute_s=fmean(measured), spread_s=pstdev(measured), optimizer_s=0.0)
        step = short.sizes[0].model_copy(update={"steps": len(measured)})
        hosts = advised(1, of=short.model_copy(update={"sizes": (step,)}))
        found = predict(layout("all_reduce", 1), hosts, steps=10)
        inside += found.low <= 32 / fmean(random.gauss(1.0, 0.1) for _ in range(10)) <= found.high
    assert 0.75 <= inside / DRAWN <= 0.88


@pytest.mark.parametrize("kind", ["all_reduce", "downpour", "hogwild", "diloco"])
def test_longer_profiles_and_runs_have_narrower_intervals(kind: str) -> None:
    servers, groups = (2, 4) if kind == "downpour" else (0, 1 if kind == "all_reduce" else 4)
    chosen = layout(kind, 4, servers, groups)

    def width(measured: int, steps: int | None) -> float:
        of = profile(compute_s=10.0, spread_s=1.0)
        size = of.sizes[0].model_copy(update={"steps": measured})
        found = predict(chosen, advised(6, of=of.model_copy(update={"sizes": (size,)})), steps=steps)
        return (found.high - found.low) / found.samples_s

    assert width(5, 10) > width(20, 10) > width(20, 1000) > width(20, None)
    assert width(20, 1_000_000) == pytest.approx(width(20, None), rel=1e-3)


def test_all_of_an_overlapped_exchange_that_determines_the_step_is_uncertain() -> None:
    chosen = layout("downpour", 4, 1, 4)
    limited, hidden = predicted(chosen, compute_s=8.0), predicted(chosen, compute_s=60.0)
    assert limited.exchange_s < 0.3 * limited.step_s
    assert limited.high / limited.low == pytest.approx(1 + 2 * 1.2816 * 0.045, rel=0.01)
    assert hidden.high / hidden.low == pytest.approx(1 + 2 * 1.2816 * 0.02, rel=0.01)


def test_the_interval_covers_the_differences_between_past_runs() -> None:
    scope = Scope.of(StrategyKind.ALL_REDUCE, ["64 CPUs"])

    def corrected(*compute: float) -> Prediction:
        found = corrections_of([Ratios(scope, factor, None) for factor in compute])
        return predict(layout("all_reduce", 4), advised(4, of=profile(compute_s=10.0)), found[scope])

    def width(prediction: Prediction) -> float:
        return (prediction.high - prediction.low) / prediction.samples_s

    one, equal, different = corrected(1.0), corrected(1.0, 1.001), corrected(0.9, 1.0, 1.1)
    assert width(one) == pytest.approx(width(equal), rel=0.01)
    assert different.samples_s == pytest.approx(one.samples_s)
    assert width(different) == pytest.approx(5 * width(one), rel=0.1)
