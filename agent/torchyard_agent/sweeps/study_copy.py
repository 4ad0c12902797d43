"""Copies a study from another storage to an SQLite file, which Optuna's dashboard and desktops read."""

from __future__ import annotations

import os
import shutil
import tempfile

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from torchyard_agent.sweeps.study_setup import STUDY_NAME


def write_copy(study: optuna.Study, before: str, new: str) -> None:
    """Writes a copy of a study to the file `new`.

    Trials that have already ended in the earlier copy, `before`, are taken from it. SQLite needs file locks, which file
    systems of clusters may lack, so the copy is made in a temporary folder.
    """
    with tempfile.TemporaryDirectory(prefix="torchyard-study-") as folder:
        file = os.path.join(folder, "study.sqlite3")
        if os.path.exists(before):
            shutil.copyfile(before, file)
        storage = RDBStorage(f"sqlite:///{file}")
        try:
            _update(storage, study)
        finally:
            storage.remove_session()
            storage.engine.dispose()
        shutil.copyfile(file, new)


def _update(storage: BaseStorage, study: optuna.Study) -> None:
    copy = optuna.create_study(storage=storage, study_name=STUDY_NAME, direction=study.direction, load_if_exists=True)
    known = copy.get_trials(deepcopy=False)
    for trial in study.get_trials(deepcopy=False):
        if trial.number >= len(known):
            copy.add_trial(trial)
        elif not known[trial.number].state.is_finished():
            _change(storage, known[trial.number], trial)


def _change(storage: BaseStorage, known: FrozenTrial, trial: FrozenTrial) -> None:
    """Updates an unfinished trial of the copy, `known`, to the state of the study's trial."""
    number = known._trial_id
    if known.state is TrialState.WAITING and trial.state is not TrialState.WAITING:
        storage.set_trial_state_values(number, TrialState.RUNNING)
    for name, value in trial.params.items():
        if name not in known.params:
            distribution = trial.distributions[name]
            storage.set_trial_param(number, name, distribution.to_internal_repr(value), distribution)
    for step, objective in trial.intermediate_values.items():
        if step not in known.intermediate_values:
            storage.set_trial_intermediate_value(number, step, objective)
    for name, value in trial.user_attrs.items():
        if known.user_attrs.get(name) != value:
            storage.set_trial_user_attr(number, name, value)
    for name, value in trial.system_attrs.items():
        if known.system_attrs.get(name) != value:
            storage.set_trial_system_attr(number, name, value)
    if trial.state.is_finished():
        storage.set_trial_state_values(number, trial.state, trial.values)
