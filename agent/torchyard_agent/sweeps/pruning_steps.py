"""The steps at which a sweep's trials are compared, so that the pruner can end bad trials early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LATEST = 0.05
"""A value counts for step n if it was sampled at most LATEST * n steps, or one step, after step n."""


def comparison_step(pruner: Mapping[str, Any], sampled: int) -> int | None:
    """Returns the comparison step of a value that was sampled at step `sampled`, or None if it counts for no step.

    Metrics are sampled at intervals of time, so each trial has values at different steps. All trials are compared at
    the same steps: the multiples of `interval_steps` or, if it is not set, 1, 2, …, 9, 10, 20, …, and for `asha` and
    `hyperband` also the steps of the rungs. A value that was sampled much later than the newest comparison step is not
    used, because the trial would look better than trials whose value is from that step. Trials with short steps are
    therefore compared rarely.
    """
    step = max((each for each in _steps(pruner, sampled) if each <= sampled), default=0)
    return step if step and sampled - step <= max(1, LATEST * step) else None


def _steps(pruner: Mapping[str, Any], to: int) -> list[int]:
    """Returns some of the steps at which trials are compared, among them the last one that is not after `to`."""
    interval = pruner.get("interval_steps")
    if interval:
        return [to // interval * interval]
    power = 10 ** (len(str(max(to, 1))) - 1)
    steps = [digit * power for digit in range(1, 10)]
    if pruner.get("kind") in ("asha", "hyperband"):
        factor = pruner.get("reduction_factor") or (4 if pruner["kind"] == "asha" else 3)
        rung = pruner.get("min_resource") or 1
        while rung <= to:
            steps.append(rung)
            rung *= factor
    return steps
