from __future__ import annotations

import pytest

from torchyard_agent.sweeps.trial_outcomes import Measurement, Outcome, measurement, outcome, sweep_failure

SUCCEEDED = {"state": "succeeded", "reason": "", "ended": True, "metrics": {"worker-0": {"loss": 0.5, "step": 9}}}


def decide(shown: dict, *, pruned: bool = False, stopping: bool = False) -> Outcome:
    return outcome("loss", ["worker-0", "worker-1"], shown, pruned=pruned, stopping=stopping)


def test_the_objective_is_that_of_the_first_replica_that_reports_it() -> None:
    metrics = {"evaluator-0": {"loss": 3.0}, "worker-1": {"loss": 2.0, "step": 4}, "worker-0": {"step": 5}}
    assert measurement("loss", ["worker-0", "worker-1", "evaluator-0"], metrics) == Measurement(2.0, 4)
    assert measurement("acc", ["worker-0"], metrics) is None


def test_a_trial_that_ends_well_has_a_value_and_others_have_a_cause() -> None:
    assert decide(SUCCEEDED) == Outcome("complete", 0.5, "")
    lacking = {**SUCCEEDED, "metrics": {"worker-0": {"acc": 1.0, "step": 2}}}
    assert decide(lacking).cause == "the objective loss was never reported; reported were: acc, step"
    assert decide({**SUCCEEDED, "metrics": {}}).cause.endswith("; the program reported no metrics")
    infinite = {**SUCCEEDED, "metrics": {"worker-0": {"loss": None}}}
    assert decide(infinite).cause == "the objective loss was not a finite number at the end"
    failed = {**SUCCEEDED, "state": "failed", "reason": "worker-0 on a: exit code 1"}
    assert decide(failed) == Outcome("failed", None, "worker-0 on a: exit code 1")
    assert decide({**SUCCEEDED, "ended": False}) == Outcome("failed", None, "its keeper died")


def test_a_stopped_trial_was_pruned_interrupted_or_stopped_by_a_user() -> None:
    stopped = {**SUCCEEDED, "state": "stopped", "reason": "stopped by kim"}
    assert decide(stopped, pruned=True).state == "pruned"
    assert decide(stopped, stopping=True).state == "interrupted"
    assert decide(stopped) == Outcome("failed", None, "stopped by kim")


@pytest.mark.parametrize(
    ("states", "causes", "expected"),
    [
        ([], [], ""),
        (["failed", "complete", "pruned"], ["x"], ""),
        (["failed"], ["x"], "the only trial has failed: x"),
        (["failed"] * 3, ["x"] * 3, "all 3 trials have failed: x"),
        (["failed"] * 3, ["y", "x", "x"], "all 3 trials have failed, 2 of them because: x"),
        (["failed"] * 3, ["GPU 0", "x", "GPU 1"], "all 3 trials have failed, 2 of them because: GPU 0"),
        (["failed"] * 2, ["GPU 0 on n1", "GPU 1 on n2"], "all 2 trials have failed: GPU 0 on n1"),
        (["failed"] * 3, ["x", "y", "z"], "all 3 trials have failed, for example because: x"),
        (["pruned", "failed"], ["x"], "no trial is complete: 1 failed, and the pruner ended 1: x"),
        (["pruned"], [], "no trial is complete: 0 failed, and the pruner ended 1"),
    ],
)
def test_a_sweep_without_a_complete_trial_has_failed(states: list[str], causes: list[str], expected: str) -> None:
    assert sweep_failure(states, causes) == expected
