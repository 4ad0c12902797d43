"""Tests of the steps at which trials are compared."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_agent.sweeps.pruning_steps import comparison_step

MEDIAN = {"kind": "median"}
ASHA = {"kind": "asha", "min_resource": 8, "reduction_factor": 4}


@pytest.mark.parametrize(
    ("pruner", "sampled", "step"),
    [
        (MEDIAN, 0, None),
        (MEDIAN, 1, 1),
        (MEDIAN, 9, 9),
        (MEDIAN, 11, 10),
        (MEDIAN, 12, None),
        (MEDIAN, 200, 200),
        (MEDIAN, 210, 200),
        (MEDIAN, 211, None),
        (MEDIAN, 257, None),
        (MEDIAN, 1050, 1000),
        ({"kind": "median", "interval_steps": 50}, 130, None),
        ({"kind": "median", "interval_steps": 50}, 155, 150),
        ({"kind": "median", "interval_steps": 50}, 49, None),
        (ASHA, 32, 32),
        (ASHA, 33, 32),
        (ASHA, 130, 128),
        (ASHA, 512, 512),
    ],
)
def test_a_value_counts_for_a_step_shortly_before_it(pruner: dict[str, Any], sampled: int, step: int | None) -> None:
    assert comparison_step(pruner, sampled) == step


def test_trials_that_differ_only_in_the_time_of_their_samples_are_not_compared_at_different_steps() -> None:
    """Two trials report 1500 minus the step: one is sampled at steps 156, 290 and 420, one at 171, 257 and 405."""
    compared: dict[int, list[int]] = {}
    for samples in ((156, 290, 420), (171, 257, 405)):
        for sampled in samples:
            step = comparison_step(MEDIAN, sampled)
            if step is not None:
                compared.setdefault(step, []).append(1500 - sampled)
    assert compared == {400: [1080, 1095]}
