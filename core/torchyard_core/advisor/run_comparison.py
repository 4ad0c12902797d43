"""Comparison of a run's measured steps with their prediction, by the parts of a step.

A trainer reports `compute_s`, `exchange_s` and `wait_s` of its last step, which add up to the step's time: the part of
an exchange that overlaps with computing is not counted, as in a prediction. Strategies divide the time outside
computing into exchange and waiting in different ways, so ratios are computed only from computing times and whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import harmonic_mean, median
from typing import Any

from torchyard_core.advisor.corrections import Ratios, Scope
from torchyard_core.advisor.prediction import AdvisedHost, Layout, predict
from torchyard_core.throughput import is_trainer
from torchyard_core.topology.model import Shard, Strategy, StrategyKind

STEPS_ON_SERVERS = (StrategyKind.SANDBLASTER, StrategyKind.DOWNPOUR)
"""Strategies under which servers step the optimizer."""
ASYNCHRONOUS = (StrategyKind.DOWNPOUR, StrategyKind.HOGWILD)
"""Strategies under which worker groups step independently, so that their steps may take different times."""
MEASURED_STATES = ("running", "stopping", "succeeded", "stopped")
"""States of trainers that take part in the last step."""
FIRST_STEPS = 5
"""Number of steps at the start of a run that are not compared, since they include the warm-up."""
SMALLEST_SHARE = 0.05
"""The exchange is compared only if it is at least this share of the predicted step. Otherwise noise would dominate."""


@dataclass(frozen=True)
class StepTimes:
    """The durations of a step's parts in seconds, which add up to the duration of the step."""

    compute_s: float
    exchange_s: float
    wait_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exchange_s + self.wait_s

    def as_json(self) -> dict[str, float]:
        return {"step_s": self.step_s, **vars(self)}


@dataclass(frozen=True)
class PredictedStep:
    """The predicted step of a run. Times are in seconds."""

    scope: Scope
    step_s: float
    exchange_s: float
    compute_s: Mapping[str, float]
    """Computing time of each trainer."""

    def of(self, compute_s: float) -> StepTimes:
        """Returns the parts of the step for a trainer with the given computing time.

        Time that is neither computing nor exchange is waiting time.
        """
        return StepTimes(compute_s, self.exchange_s, max(0.0, self.step_s - self.exchange_s - compute_s))

    @property
    def median(self) -> StepTimes:
        """The parts of the step for a trainer with the median computing time."""
        return self.of(median(self.compute_s.values()))


@dataclass(frozen=True)
class RunComparison:
    """Predicted and measured parts of a step, for the median of a run's trainers."""

    predicted: StepTimes
    measured: StepTimes
    trainers: int
    has_same_files: bool
    """Whether the profile was measured with the files, arguments and environment of the run."""

    def as_json(self) -> dict[str, Any]:
        return {
            "predicted": self.predicted.as_json(),
            "measured": self.measured.as_json(),
            "trainers": self.trainers,
            "same_files": self.has_same_files,
        }


def predicted_step(
    layout: Layout, hosts: Sequence[AdvisedHost], trainers: Mapping[str, int], scope: Scope
) -> PredictedStep | None:
    """Returns the predicted step without corrections, or None if the run's reports cannot be compared with it.

    Args:
        trainers: The index of each trainer's host in `hosts`.
    """
    if not _is_comparable(layout, scope):
        return None
    prediction = predict(layout, hosts)
    computing = {}
    for name, number in trainers.items():
        compute = hosts[number].compute
        if compute is None:
            return None
        optimizer = 0.0 if layout.strategy.kind in STEPS_ON_SERVERS else compute.optimizer_s
        computing[name] = compute.gradient_s + optimizer
    return PredictedStep(scope, prediction.step_s, prediction.exchange_s, computing)


def _is_comparable(layout: Layout, scope: Scope) -> bool:
    """Returns whether the last step that trainers report can be compared with the mean step that is predicted.

    Under DiLoCo, and under downpour and Hogwild with intervals of several steps, only some steps exchange.
    """
    strategy = layout.strategy
    is_split = len(layout.groups) > 1
    if strategy.shard is not Shard.NONE or not _exchanges_every_step(strategy, is_split=is_split):
        return False
    if strategy.kind is StrategyKind.NONE and len(layout.trainers) * layout.ranks > 1:
        return False  # The script's own exchange is reported as computing.
    # The predicted step time is a mean over the groups. If their speeds differ, no group's step time equals the mean.
    return not (strategy.kind in ASYNCHRONOUS and is_split and len(scope.host_kinds) > 1)


def _exchanges_every_step(strategy: Strategy, *, is_split: bool) -> bool:
    if strategy.kind is StrategyKind.DILOCO:
        return False
    if strategy.kind is StrategyKind.DOWNPOUR:
        return strategy.push_every == strategy.pull_every == 1
    return strategy.kind is not StrategyKind.HOGWILD or not is_split or strategy.sync_every == 1


def measured_step(
    predicted: PredictedStep, replicas: Sequence[Mapping[str, Any]], metrics: Mapping[str, Mapping[str, Any]]
) -> StepTimes | None:
    """Returns the measured parts of a run's last step, as medians over the run's trainers.

    Returns None if a trainer has not reported enough steps, or if trainers were lost or added since the launch.

    Args:
        replicas: The states of the run's replicas.
        metrics: The last report of each replica.
    """
    states = {replica.get("name"): replica.get("state") for replica in replicas}
    now = {name for name, state in states.items() if state in MEASURED_STATES and is_trainer(str(name))}
    if now != predicted.compute_s.keys():
        return None
    found = []
    for name in predicted.compute_s:
        reported = metrics.get(name, {})
        parts = [_seconds(reported.get(part)) for part in ("compute_s", "exchange_s", "wait_s")]
        is_warm = (_seconds(reported.get("step")) or 0.0) > FIRST_STEPS
        if not is_warm or not parts[0]:
            return None
        found.append(StepTimes(*(part or 0.0 for part in parts)))
    steps = [each.step_s for each in found]
    # The predicted step of asynchronous groups is a harmonic mean, since their samples/s are added up.
    step = harmonic_mean(steps) if predicted.scope.kind in ASYNCHRONOUS else median(steps)
    compute = median(each.compute_s for each in found)
    outside = max(0.0, step - compute)
    wait = min(outside, median(each.wait_s for each in found))
    return StepTimes(compute, outside - wait, wait)


def _seconds(value: object) -> float | None:
    if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def ratios(predicted: PredictedStep, measured: StepTimes) -> Ratios:
    """Returns the ratios of measured to predicted computing and exchange times.

    With these ratios, the corrected prediction equals the measured time of a step: the predicted time until the slowest
    trainer has its gradients is multiplied by the first ratio, and the rest of the measured time is attributed to the
    exchange.
    """
    compute = measured.compute_s / max(1e-9, predicted.median.compute_s)
    computed_s = predicted.step_s - predicted.exchange_s
    exchange = None
    if predicted.exchange_s >= SMALLEST_SHARE * predicted.step_s:
        exchange = (measured.step_s - compute * computed_s) / predicted.exchange_s
    return Ratios(predicted.scope, compute, exchange)
