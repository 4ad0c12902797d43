"""Tests predictions: the simulation against closed forms, bytes against formulas, and the named bottleneck."""

from __future__ import annotations

import pytest

from tests.core.advisor.samples import MEGABIT, advised, profile
from torchyard_core.advisor.corrections import Correction
from torchyard_core.advisor.prediction import AdvisedHost, Layout, Prediction, predict
from torchyard_core.advisor.trainer_compute import trainer_compute
from torchyard_core.topology.model import Strategy, StrategyKind

M = 60e6
B = 200 * MEGABIT


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
    assert noisy.step_s - calm.step_s == pytest.approx(1.4236 * 2.0, rel=0.02)
    assert noisy.wait_s == pytest.approx(1.4236 * 2.0, rel=0.02)
    calm, noisy = (predicted(layout("downpour", 8, 8, 8), compute_s=20, spread_s=each) for each in (0.0, 2.0))
    assert noisy.step_s == pytest.approx(calm.step_s)


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
