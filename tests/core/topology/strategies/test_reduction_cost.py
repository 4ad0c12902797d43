"""Tests that the computed costs of reductions agree with closed-form formulas."""

from __future__ import annotations

import pytest

from torchyard_core.topology.strategies.reduction_cost import (
    Reduction,
    fastest_reduction,
    reducers_that_beat_the_ring,
    reducers_time,
    ring_time,
)


def test_four_workers_with_two_reducers_are_best_mixed() -> None:
    found = fastest_reduction(4, 2)
    assert found.best is Reduction.MIXED
    assert found.time == pytest.approx(1.2)
    assert found.times == pytest.approx({Reduction.RING: 1.5, Reduction.REDUCERS: 2.0, Reduction.MIXED: 1.2})


@pytest.mark.parametrize(("workers", "gain"), [(4, 1.5), (8, 1.75)])
def test_as_many_reducers_as_workers_reduce_alone(workers: int, gain: float) -> None:
    found = fastest_reduction(workers, workers)
    assert found.best is Reduction.REDUCERS
    assert ring_time(workers) / found.time == pytest.approx(gain)


@pytest.mark.parametrize("reducers", [0, 1, 2, 5])
def test_two_workers_are_never_better_than_a_ring(reducers: int) -> None:
    assert fastest_reduction(2, reducers).best is Reduction.RING
    assert reducers_that_beat_the_ring(2) is None


@pytest.mark.parametrize("workers", [3, 4, 5, 8, 16, 33])
def test_the_sizing_rule_is_the_fewest_reducers_that_beat_the_ring(workers: int) -> None:
    least = reducers_that_beat_the_ring(workers)
    assert least is not None
    assert least > workers**2 / (2 * (workers - 1)) >= least - 1
    assert reducers_time(workers, least) < ring_time(workers) <= reducers_time(workers, least - 1)


def test_one_trainer_exchanges_nothing() -> None:
    assert fastest_reduction(1, 3).time == 0


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 31])
@pytest.mark.parametrize("reducers", [0, 1, 2, 4, 7, 31, 40])
def test_what_is_drawn_is_what_the_run_would_choose(workers: int, reducers: int) -> None:
    from torchyard_roles.strategies.reduction_server import reduction_plan

    found = fastest_reduction(workers, reducers)
    assert {way.value: time for way, time in found.times.items()} == pytest.approx(
        reduction_plan.times(workers, reducers)
    )
    assert found.best.value == reduction_plan.choose(workers, reducers).kind
