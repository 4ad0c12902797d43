"""Tests of the steps at which trials are compared."""

from __future__ import annotations

from torchyard_agent.sweeps.pruning_steps import passed_steps


def test_trials_are_compared_at_the_same_steps() -> None:
    assert passed_steps({"kind": "median"}, 0, 12) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert passed_steps({"kind": "none"}, 12, 250) == [20, 30, 40, 50, 60, 70, 80, 90, 100, 200]
    assert passed_steps({"kind": "median", "interval_steps": 50}, 49, 130) == [50, 100]
    asha = {"kind": "asha", "min_resource": 8, "reduction_factor": 4}
    assert passed_steps(asha, 30, 130) == [32, 40, 50, 60, 70, 80, 90, 100, 128]
    assert passed_steps({"kind": "median"}, 12, 12) == []
    assert len(passed_steps({"kind": "median", "interval_steps": 1}, 0, 10**9)) == 20
