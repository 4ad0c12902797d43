"""Tests of the comparison of measured steps with predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.core.advisor.samples import advised, profile
from torchyard_core.advisor.corrections import Scope
from torchyard_core.advisor.prediction import AdvisedHost, Layout, predict
from torchyard_core.advisor.run_comparison import PredictedStep, measured_step, predicted_step, ratios
from torchyard_core.topology.model import Strategy, StrategyKind

KIND = "64 CPUs"


def predicted(strategy: Strategy, *, hosts: list[AdvisedHost] | None = None, groups: int = 1, servers: int = 0,
              kinds: tuple[str, ...] = (KIND,)) -> PredictedStep | None:  # fmt: skip
    """Returns the predicted duration of a step with four trainers."""
    found = hosts or advised(4 + servers)
    each = 4 // groups
    layout = Layout(
        strategy,
        tuple(tuple(range(group * each, (group + 1) * each)) for group in range(groups)),
        tuple(range(4, 4 + servers)),
    )
    trainers = {f"worker-{number}": number for number in range(4)}
    return predicted_step(layout, found, trainers, Scope.of(strategy.kind, kinds))


def reports(*steps: tuple[float, float, float]) -> dict[str, dict[str, float]]:
    """Returns the workers' reports, given the computing, exchange and waiting times of each worker's step."""
    return {
        f"worker-{number}": {"step": 20, "compute_s": compute, "exchange_s": exchange, "wait_s": wait}
        for number, (compute, exchange, wait) in enumerate(steps)
    }


def running(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": name, "state": "running"} for name in metrics]


@pytest.mark.parametrize(
    ("strategy", "groups", "is_compared"),
    [
        (Strategy(kind=StrategyKind.ALL_REDUCE), 1, True),
        (Strategy(kind=StrategyKind.NONE), 1, False),
        (Strategy(kind=StrategyKind.SANDBLASTER), 1, True),
        (Strategy(kind=StrategyKind.DOWNPOUR), 4, True),
        (Strategy(kind=StrategyKind.DOWNPOUR, push_every=2), 4, False),
        (Strategy(kind=StrategyKind.HOGWILD, sync_every=8), 4, False),
        (Strategy(kind=StrategyKind.HOGWILD, sync_every=1), 4, True),
        (Strategy(kind=StrategyKind.DILOCO), 4, False),
    ],
    ids=str,
)
def test_runs_in_which_only_some_steps_exchange_are_not_compared(
    strategy: Strategy, groups: int, is_compared: bool
) -> None:
    served = strategy.kind in (StrategyKind.SANDBLASTER, StrategyKind.DOWNPOUR)
    found = predicted(strategy, groups=groups, servers=2 if served else 0)
    assert (found is not None) == is_compared
    if found is not None:  # The servers step the optimizer, so the trainers' computing time is shorter.
        assert found.median.compute_s == pytest.approx(0.5 if served else 0.51)


def test_the_parts_of_each_trainer_add_up_to_the_predicted_step() -> None:
    slow = advised(1, of=profile(compute_s=0.8))
    hosts = [*advised(3), *slow]
    found = predicted(Strategy(kind=StrategyKind.ALL_REDUCE), hosts=hosts, kinds=("a", "b"))
    assert found is not None
    assert found.step_s == pytest.approx(
        predict(Layout(Strategy(kind=StrategyKind.ALL_REDUCE), ((0, 1, 2, 3),)), hosts).step_s
    )
    fast = found.of(found.compute_s["worker-0"])
    assert (fast.compute_s, fast.wait_s) == (pytest.approx(0.51), pytest.approx(0.3))
    assert found.of(found.compute_s["worker-3"]).wait_s == pytest.approx(0.0)
    assert fast.step_s == pytest.approx(found.step_s)
    # Steps that match the prediction give ratios of 1, even if some trainers are faster than others.
    times = [found.of(compute_s) for compute_s in found.compute_s.values()]
    metrics = reports(*((each.compute_s, each.exchange_s, each.wait_s) for each in times))
    measured = measured_step(found, running(metrics), metrics)
    assert measured is not None
    assert ratios(found, measured).compute == pytest.approx(1)
    assert ratios(found, measured).exchange == pytest.approx(1)


def test_groups_of_unequally_fast_hosts_are_not_compared() -> None:
    strategy = Strategy(kind=StrategyKind.DOWNPOUR)
    assert predicted(strategy, groups=4, servers=2, kinds=("a", "b")) is None


def test_it_does_not_matter_whether_a_strategy_counts_waiting_as_exchange() -> None:
    found = predicted(Strategy(kind=StrategyKind.ALL_REDUCE))
    assert found is not None
    apart, together = reports(*[(0.6, 2.0, 0.5)] * 4), reports(*[(0.6, 2.5, 0.0)] * 4)
    measured = [measured_step(found, running(metrics), metrics) for metrics in (apart, together)]
    assert measured[0] is not None
    assert measured[1] is not None
    assert ratios(found, measured[0]) == ratios(found, measured[1])
    assert (measured[0].exchange_s, measured[0].wait_s) == (pytest.approx(2.0), pytest.approx(0.5))


def test_one_trainer_with_an_unusual_last_step_changes_nothing() -> None:
    found = predicted(Strategy(kind=StrategyKind.ALL_REDUCE))
    assert found is not None
    metrics = reports(*[(0.6, 2.0, 0.0)] * 3, (9.0, 0.0, 0.0))
    measured = measured_step(found, running(metrics), metrics)
    assert measured is not None
    assert (measured.compute_s, measured.step_s) == (pytest.approx(0.6), pytest.approx(2.6))


def test_a_run_with_other_trainers_than_predicted_is_not_compared() -> None:
    found = predicted(Strategy(kind=StrategyKind.ALL_REDUCE))
    assert found is not None
    metrics = reports(*[(0.6, 2.0, 0.0)] * 5)
    assert measured_step(found, running(metrics), metrics) is None
    assert measured_step(found, running(metrics)[:4], metrics) is not None
    lost = [*running(metrics)[:3], {"name": "worker-3", "state": "lost"}]
    assert measured_step(found, lost, metrics) is None


def test_an_exchange_that_is_hidden_by_computing_gives_no_ratio() -> None:
    found = predicted(Strategy(kind=StrategyKind.ALL_REDUCE), hosts=advised(4, mbit=100_000.0))
    assert found is not None
    metrics = reports(*[(0.6, 0.3, 0.0)] * 4)
    measured = measured_step(found, running(metrics), metrics)
    assert measured is not None
    assert ratios(found, measured).exchange is None
