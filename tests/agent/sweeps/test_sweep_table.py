"""Tests of the importance of parameters in a sweep's table."""

from __future__ import annotations

import warnings

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial

from torchyard_agent.sweeps.sweep_table import LEAST_FOR_IMPORTANCE, importances


def study_with(trials: int) -> optuna.Study:
    """Returns a study in which the value depends on `lr` alone."""
    study = optuna.create_study()
    space = {"lr": FloatDistribution(0, 1), "momentum": FloatDistribution(0, 1)}
    for number in range(trials):
        params = {"lr": number / trials, "momentum": (number * 7 % trials) / trials}
        study.add_trial(create_trial(params=params, distributions=space, value=params["lr"] ** 2))
    return study


def test_the_importance_of_parameters_comes_from_optuna_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = importances(study_with(20))
    assert list(found) == ["lr", "momentum"]
    assert found["lr"] > 0.6


def test_too_few_trials_have_no_importance() -> None:
    assert importances(study_with(LEAST_FOR_IMPORTANCE - 1)) == {}
