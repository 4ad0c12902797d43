"""Operations on a sweep's study, for sweeps on hosts (one coordinator) and on clusters (one process per trial).

They draw parameters, report the objective, ask the pruner, record outcomes, and write the table for desktops and a copy
of the study. They do not start trials.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Container, Mapping, Sequence
from typing import Any, Callable

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from torchyard_agent.protocol.sweep_messages import Search
from torchyard_agent.sweeps import pruning_steps, study_setup, sweep_table, trial_outcomes
from torchyard_agent.sweeps.trial_outcomes import Outcome

COPY, TABLE = "study-copy.sqlite3", "sweep.json"
"""The names of the study's copy, an SQLite file, and of the table. Desktops read both."""
MOST_FAILED_STARTS = 3
"""Number of consecutive trials that fail to start after which the sweep is stopped."""


class SweepStudy:
    """The study of one sweep.

    Args:
        run_id: The ID of the sweep's run.
        name: The name of the sweep.
        search: The contents of the search file.
        folder: The folder to which the table and the study's copy are written.
        study: The study, opened with Optuna.
        copy: Writes a consistent copy of the study to a new SQLite file.
    """

    def __init__(
        self, run_id: str, name: str, search: Search, folder: str, study: optuna.Study, copy: Callable[[str], None]
    ):
        self.run_id = run_id
        self.search = search
        self.study = study
        self._name = name
        self._folder = folder
        self._copy = copy
        self._distributions = study_setup.distributions_of(search)
        self._importances: dict[str, float] = {}

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Returns the trials in these states, or all trials if none are given."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def reopened(self, frozen: FrozenTrial) -> optuna.Trial:
        # Optuna has no public attribute for a trial's ID in the storage.
        return optuna.Trial(self.study, frozen._trial_id)

    def number_to_draw(self) -> int:
        """Returns the number of trials whose parameters must still be drawn.

        A trial that was interrupted when an earlier sweep ended does not reduce this number.
        """
        drawn = [trial for trial in self.trials() if trial.state is not TrialState.WAITING]
        return self.search["trials"] - sum(not trial.user_attrs.get("interrupted") for trial in drawn)

    def params(self, trial: optuna.Trial) -> dict[str, Any]:
        """Returns the parameters of a trial. They are drawn at the first call for the trial."""
        return {name: _suggest(trial, name, one) for name, one in self._distributions.items()}

    def end_trials_of_earlier_sweep(self) -> list[str]:
        """Marks unfinished trials of the sweep that this one continues as interrupted. Returns a log line for each."""
        outcome = Outcome(trial_outcomes.INTERRUPTED, None, "the sweep ended while it ran")
        lines = []
        for frozen in self.trials(TrialState.RUNNING):
            run_id = frozen.user_attrs.get("run_id", "")
            if run_id and not run_id.startswith(f"{self.run_id}."):
                lines.append(self.record(self.reopened(frozen), outcome))
        return lines

    def repeat_interrupted(self) -> None:
        """Schedules the parameters of each interrupted trial to be tried once more, before any new parameters."""
        trials = self.trials()
        repeated = {trial.user_attrs.get("repeats") for trial in trials}
        for trial in trials:
            is_complete = set(trial.params) == set(self._distributions)
            if trial.user_attrs.get("interrupted") and is_complete and trial.number not in repeated:
                self.study.enqueue_trial(dict(trial.params), user_attrs={"repeats": trial.number})

    def record(self, trial: optuna.Trial, outcome: Outcome) -> str:
        """Records the outcome of a trial in the study. Returns a line about the trial for the sweep's log."""
        if outcome.cause:
            trial.set_user_attr("cause", outcome.cause)
        if outcome.state == trial_outcomes.INTERRUPTED:
            trial.set_user_attr("interrupted", True)
        if outcome.state == trial_outcomes.COMPLETE:
            self.study.tell(trial, outcome.value)
        else:
            state = TrialState.PRUNED if outcome.state == trial_outcomes.PRUNED else TrialState.FAIL
            self.study.tell(trial, state=state)
        metric = self.search["objective"]["metric"]
        shown = f"{metric} {outcome.value:g}" if outcome.value is not None else outcome.state
        return f"trial {trial.number + 1}: {shown}" + (f": {outcome.cause}" if outcome.cause else "")

    def failure(self) -> str:
        """Returns why a sweep whose trials have ended has failed, or "" if a trial is complete."""
        ended = [row for row in sweep_table.rows(self.study) if row["state"] != trial_outcomes.INTERRUPTED]
        causes = [row["cause"] for row in ended if row["state"] == trial_outcomes.FAILED]
        return trial_outcomes.sweep_failure([row["state"] for row in ended], causes)

    def update_importances(self) -> None:
        """Recomputes the importances of the parameters. Called after a trial has ended."""
        self._importances = sweep_table.importances(self.study)

    def write_table(
        self,
        state: str,
        *,
        slots: Sequence[Sequence[str]] = (),
        lost: Sequence[str] = (),
        waiting: Container[str] = (),
        with_copy: bool,
    ) -> None:
        """Writes the table for desktops, and a copy of the study if `with_copy`.

        Args:
            waiting: The trials that have begun, but have no nodes at present.
        """
        copy = os.path.join(self._folder, COPY)
        if with_copy:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{copy}.new")
            self._copy(f"{copy}.new")
            os.replace(f"{copy}.new", copy)
        table = {
            "run_id": self.run_id,
            "name": self._name,
            "state": state,
            **self.search["objective"],
            "parameters": list(self._distributions),
            "wanted": self.search["trials"],
            "slots": [list(hosts) for hosts in slots],
            "lost": sorted(lost),
            "trials": [
                {**row, "state": "waiting", "hosts": []} if row["trial"] in waiting else row
                for row in sweep_table.rows(self.study)
            ],
            "importances": self._importances,
            "study": _digest(copy),
        }
        with open(os.path.join(self._folder, f"{TABLE}.new"), "w", encoding="utf-8") as file:
            json.dump(table, file)
        os.replace(os.path.join(self._folder, f"{TABLE}.new"), os.path.join(self._folder, TABLE))


class FollowedTrial:
    """A trial whose run has begun or may have begun, with the steps at which its objective was reported.

    Args:
        replicas: The names of the run's replicas in plan order.
    """

    def __init__(self, study: SweepStudy, trial: optuna.Trial, replicas: Sequence[str]):
        self.trial = trial
        self.pruned = bool(trial.user_attrs.get("pruned"))
        self._study = study
        self._replicas = replicas
        self._last_step = max(self._steps, default=0)

    @property
    def name(self) -> str:
        return str(self.trial.number + 1)

    @property
    def _steps(self) -> list[int]:
        """The steps for which the objective was reported."""
        return list(self._study.trials()[self.trial.number].intermediate_values)

    def report(self, metrics: Mapping[str, Any]) -> bool:
        """Reports the objective if it counts for a step at which trials are compared. Returns whether it does."""
        search = self._study.search
        found = trial_outcomes.measurement(search["objective"]["metric"], self._replicas, metrics)
        if found is None or found.step is None:
            return False
        step = pruning_steps.comparison_step(search["pruner"], found.step)
        if step is None or step <= self._last_step:
            return False
        self._last_step = step
        self.trial.report(found.value, step)
        return True

    def prune(self) -> str:
        """Asks the pruner after a report. Returns why the trial is to be ended, or "" if it may continue."""
        if self.pruned or not self.trial.should_prune():
            return ""
        self.pruned = True
        self.trial.set_user_attr("pruned", True)
        return f"ended by the pruner at step {max(self._steps)}: it is worse than other trials"

    def outcome(self, shown: Mapping[str, Any], *, stopping: bool) -> Outcome:
        """Returns the outcome of the ended trial. The arguments are explained at `trial_outcomes.outcome`."""
        metric = self._study.search["objective"]["metric"]
        return trial_outcomes.outcome(metric, self._replicas, shown, pruned=self.pruned, stopping=stopping)


def _digest(file: str) -> str:
    """Returns the SHA-256 of the study's copy. With it, a desktop detects that it has read parts of two copies."""
    try:
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read()).hexdigest()
    except FileNotFoundError:
        return ""


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
