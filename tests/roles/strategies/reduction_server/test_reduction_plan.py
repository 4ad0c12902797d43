"""Tests of choosing between the ring, reducers, and a mixture of both."""

from __future__ import annotations

import pytest

from torchyard_roles.strategies.reduction_server.reduction_plan import choose, times


def test_the_figures_of_the_specification() -> None:
    assert times(4, 2) == pytest.approx({"ring": 1.5, "reducers": 2.0, "mixed": 1.2})
    assert times(4, 4) == pytest.approx({"ring": 1.5, "reducers": 1.0})
    assert times(8, 8) == pytest.approx({"ring": 1.75, "reducers": 1.0})
    plan = choose(4, 2)
    assert (plan.kind, plan.time) == ("mixed", pytest.approx(1.2))
    assert plan.sentence == (
        "With 4 workers and 2 reducers the exchange goes through the reducers and the workers, which all sum a share: "
        "it takes 1.20 times what one copy of the gradients takes on a host's link, against the ring 1.50 and "
        "reducers alone 2.00."
    )


@pytest.mark.parametrize("reducers", [0, 1, 2, 5])
def test_two_workers_take_the_ring_whatever_there_is(reducers: int) -> None:
    assert choose(2, reducers).kind == "ring"


@pytest.mark.parametrize("workers", [3, 4, 8, 64])
def test_enough_reducers_do_it_alone(workers: int) -> None:
    for reducers in (workers, workers + 3):
        plan = choose(workers, reducers)
        assert (plan.kind, plan.time) == ("reducers", 1.0)
        assert plan.weights == pytest.approx((1 / reducers,) * reducers + (0,) * workers)


@pytest.mark.parametrize(("workers", "reducers"), [(3, 1), (3, 2), (4, 1), (4, 2), (8, 3), (64, 40)])
def test_workers_help_too_few_reducers_and_no_link_takes_longer_than_planned(workers: int, reducers: int) -> None:
    plan = choose(workers, reducers)
    assert plan.kind == "mixed"
    assert plan.time < min(time for kind, time in times(workers, reducers).items() if kind != "mixed")
    assert sum(plan.weights) == pytest.approx(1)
    of_reducer, of_worker = plan.weights[0], plan.weights[-1]
    # A worker sends its gradients of all parts that others sum, and it sends the sum of its own part to each other
    # worker.
    worker_link = (1 - of_worker) + (workers - 1) * of_worker
    assert worker_link == pytest.approx(plan.time)
    assert workers * of_reducer == pytest.approx(plan.time)


def test_without_reducers_it_is_the_ring_and_one_worker_has_nothing_to_exchange() -> None:
    assert choose(8, 0).kind == "ring"
    assert choose(1, 3).time == 0


@pytest.mark.parametrize(
    ("workers", "reducers", "kind"),
    [(1, 1, "reducers"), (1, 3, "reducers"), (2, 1, "mixed"), (2, 2, "reducers"), (3, 1, "mixed"), (3, 3, "reducers")],
)
def test_workers_that_are_left_of_more_stay_with_the_reducers(workers: int, reducers: int, kind: str) -> None:
    plan = choose(workers, reducers, ring=False)
    assert plan.kind == kind
    assert len(plan.weights) == workers + reducers
    assert sum(plan.weights) == pytest.approx(1)
