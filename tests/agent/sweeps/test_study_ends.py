"""Test of the ends of trials that are written into the copy of a study without Optuna."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.trial import TrialState

from torchyard_agent.sweeps import study_ends, sweep_table
from torchyard_agent.sweeps.study_copy import write_copy
from torchyard_agent.sweeps.study_setup import STUDY_NAME


def test_trials_that_run_in_the_copy_get_their_outcomes_values_and_causes(tmp_path: Path) -> None:
    study = optuna.create_study(study_name=STUDY_NAME)
    for _ in range(5):
        study.ask().suggest_float("x", 0, 1)
    study.tell(3, 0.125)
    file = tmp_path / "copy.sqlite3"
    write_copy(study, str(file), str(file))
    outcomes = [("complete", 0.5, "", []), ("failed", None, "killed", [[1, 0.75]])]
    outcomes += [("interrupted", None, "the sweep was stopped", [[1, 0.5], [2, 0.25]]), ("complete", 0.125, "", [])]
    names = ("state", "value", "cause", "values")
    rows = [{"trial": str(number), **dict(zip(names, one, strict=True))} for number, one in enumerate(outcomes, 1)]
    assert [row["trial"] for row in study_ends.write(str(file), rows)] == ["1", "2", "3"]
    assert study_ends.write(str(file), rows) == []
    ended = optuna.load_study(storage=f"sqlite:///{file}", study_name=STUDY_NAME)
    found = [{name: row[name] for name in names} for row in sweep_table.rows(ended)]
    assert found[:4] == [dict(zip(names, one, strict=True)) for one in outcomes]
    assert [one.state for one in ended.trials] == [
        *(TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE, TrialState.RUNNING)
    ]
    assert all(row["ended"] >= row["started"] for row in sweep_table.rows(ended)[:4])
