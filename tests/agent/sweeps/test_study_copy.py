"""Test of the copy of a study in Optuna's journal as an SQLite file."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from torchyard_agent.sweeps.study_copy import write_copy
from torchyard_agent.sweeps.study_setup import STUDY_NAME


def test_a_copy_is_brought_up_to_date_trial_by_trial(tmp_path: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
    study = optuna.create_study(storage=storage, study_name=STUDY_NAME, direction="maximize")
    file, new = tmp_path / "copy.sqlite3", tmp_path / "copy.new"

    def copied() -> optuna.Study:
        write_copy(study, str(file), str(new))
        new.replace(file)
        return optuna.load_study(storage=f"sqlite:///{file}", study_name=STUDY_NAME)

    def contents(each: optuna.Study) -> list[tuple[object, ...]]:
        return [(one.state, one.value, one.params, one.user_attrs, one.intermediate_values) for one in each.trials]

    first, second = study.ask(), study.ask()
    first.suggest_float("x", 0, 1)
    first.set_user_attr("job", 1)
    study.enqueue_trial({"x": 0.5}, user_attrs={"repeats": 0})
    assert contents(copied()) == contents(study)
    first.report(0.5, 1)
    second.suggest_float("x", 0, 1)
    third = study.ask()
    third.suggest_float("x", 0, 1)
    assert contents(copied()) == contents(study)
    study.tell(first, 0.25)
    study.tell(second, state=TrialState.FAIL)
    third.report(0.75, 2)
    study.tell(third, state=TrialState.PRUNED)
    assert contents(copied()) == contents(study)
    assert [one.state for one in copied().trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]
