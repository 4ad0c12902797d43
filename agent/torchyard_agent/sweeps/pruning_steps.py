"""The steps at which a sweep's trials are compared, so that the pruner can end bad trials early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_STEPS = 20
"""Maximum number of steps for which one sampled value is reported."""


def passed_steps(pruner: Mapping[str, Any], after: int, to: int) -> list[int]:
    """Returns the steps with `after` < step <= `to` at which the objective is reported, so that trials can be compared.

    Metrics are sampled, so a trial reports few of its steps. All trials report at the same steps. These are the
    multiples of `interval_steps` or, if it is not set, 1, 2, …, 9, 10, 20, …, and for `asha` and `hyperband` also the
    steps of the rungs. The value of a step is the first one that is sampled at this step or later.
    """
    interval = pruner.get("interval_steps")
    if interval:
        first = after // interval + 1
        return [number * interval for number in range(max(first, to // interval - MOST_STEPS + 1), to // interval + 1)]
    steps = {digit * 10**power for power in range(len(str(max(to, 1)))) for digit in range(1, 10)}
    if pruner.get("kind") in ("asha", "hyperband"):
        factor = pruner.get("reduction_factor") or (4 if pruner["kind"] == "asha" else 3)
        rung = pruner.get("min_resource") or 1
        while rung <= to:
            steps.add(rung)
            rung *= factor
    return sorted(step for step in steps if after < step <= to)[-MOST_STEPS:]
