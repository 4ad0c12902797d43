"""The table of a sweep's trials, derived from the study. Desktops read the table, and therefore do not need Optuna."""

from __future__ import annotations

import datetime
import math
import warnings
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

LEAST_FOR_IMPORTANCE = 4
"""Smallest number of complete trials for which the importance of parameters is computed."""
MOST_VALUES = 200
"""Maximum number of a trial's intermediate values in the table. If there are more, only every nth value is kept."""
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def rows(study: optuna.Study) -> list[dict[str, Any]]:
    """Returns a row for each trial, in the order of the trials."""
    return [_row(trial) for trial in study.get_trials(deepcopy=False)]


def _row(trial: FrozenTrial) -> dict[str, Any]:
    attributes = trial.user_attrs
    state = "running" if attributes.get("started") else "waiting"
    if trial.state.is_finished():
        state = "interrupted" if attributes.get("interrupted") else _STATES[trial.state]
    values = [[step, value] for step, value in sorted(trial.intermediate_values.items())]
    return {
        "trial": str(trial.number + 1),
        "state": state,
        "params": dict(trial.params),
        "value": _finite(trial.value) if state in ("complete", "pruned") else None,
        "run_id": attributes.get("run_id", ""),
        "hosts": attributes.get("hosts", []),
        "cause": attributes.get("cause", ""),
        "started": _time(trial.datetime_start),
        "ended": _time(trial.datetime_complete),
        "job": attributes.get("job_id", ""),
        "values": values[:: len(values) // MOST_VALUES + 1],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _time(local: datetime.datetime | None) -> str:
    """Converts a time of Optuna, which is local time without a time zone, to RFC 3339 in UTC."""
    return "" if local is None else local.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")


def importances(study: optuna.Study) -> dict[str, float]:
    """Returns the importance of each parameter, the most important first, or {} if there are too few trials.

    The method is PED-ANOVA (Watanabe et al., IJCAI 2023), which needs no package besides numpy.
    """
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state is TrialState.COMPLETE]
    if len(complete) < LEAST_FOR_IMPORTANCE or len({trial.value for trial in complete}) < 2:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # The warning would be written to the sweep's log.
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):  # For example, all values of a parameter are equal.
        return {}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}
