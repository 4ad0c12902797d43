"""Tests that a sweep's study draws the same trials as Optuna does if it is used directly."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest

from torchyard_agent.protocol.sweep_messages import parameter_text
from torchyard_agent.sweeps.study_setup import distributions_of, open_study, sampler_of
from torchyard_core.sweeps.search_file import search_from_text

PARAMETERS = """\
version: 1
parameters:
  x: {distribution: uniform, low: -5, high: 5}
  lr: {distribution: log_uniform, low: 1e-4, high: 1}
  n: {distribution: int, low: 1, high: 9, step: 2}
  c: {distribution: categorical, values: [a, b]}
objective: {metric: loss, goal: minimize}
trials: 16
"""


def message_of(text: str) -> Any:
    file = search_from_text(text)
    assert file.check() == ()
    assert file.search is not None
    return file.search.as_message()


def known_function(x: float, lr: float, n: int, c: str) -> float:
    return (x - 1) ** 2 + abs(lr - 0.01) + n / 10 + (c == "b")


def direct(trial: optuna.Trial) -> float:
    return known_function(
        trial.suggest_float("x", -5, 5),
        trial.suggest_float("lr", 1e-4, 1, log=True),
        trial.suggest_int("n", 1, 9, step=2),
        trial.suggest_categorical("c", ["a", "b"]),
    )


def asked_and_told(search: Any, file: Path) -> list[dict[str, Any]]:
    study = open_study(search, f"sqlite:///{file}")
    distributions = distributions_of(search)
    for _ in range(search["trials"]):
        trial = study.ask(distributions)
        study.tell(trial, known_function(**trial.params))
    return [trial.params for trial in study.trials]


def test_a_parallel_tpe_sweep_warns_of_nothing() -> None:
    search = message_of(PARAMETERS + "parallel: 4\nsampler: {kind: tpe, seed: 7}\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert isinstance(sampler_of(search), optuna.samplers.TPESampler)
    assert caught == []


def test_tpe_draws_the_trials_of_optuna_used_directly(tmp_path: Path) -> None:
    search = message_of(PARAMETERS + "sampler: {kind: tpe, seed: 7}\n")
    drawn = asked_and_told(search, tmp_path / "s.sqlite3")
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=7))
    study.optimize(direct, n_trials=16)
    assert drawn == [trial.params for trial in study.trials]
    assert len({tuple(one.values()) for one in drawn}) > 12


def test_a_grid_visits_every_point_once(tmp_path: Path) -> None:
    text = PARAMETERS.replace("trials: 16\n", "sampler: {kind: grid, seed: 1}\n")
    text = text.replace("uniform, low: -5, high: 5", "uniform, low: 0, high: 0.15, step: 0.1")
    text = text.replace("log_uniform, low: 1e-4, high: 1", "categorical, values: [0.1, 0.2]").replace(
        "high: 9", "high: 3"
    )
    search = message_of(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = asked_and_told(search, tmp_path / "s.sqlite3")
    assert search["trials"] == len({tuple(one.values()) for one in drawn}) == 2 * 2 * 2 * 2


@pytest.mark.parametrize("kind", ["random", "cma_es"])
def test_a_seed_repeats_the_trials_of_the_other_samplers(kind: str, tmp_path: Path) -> None:
    text = PARAMETERS.replace("  c: {distribution: categorical, values: [a, b]}\n", "").replace("16", "5")
    search = message_of(text + f"sampler: {{kind: {kind}, seed: 3}}\n")
    drawn = []
    for name in ("one", "two"):
        study = open_study(search, f"sqlite:///{tmp_path / name}")
        for _ in range(5):
            trial = study.ask(distributions_of(search))
            study.tell(trial, known_function(**trial.params, c="a"))
        drawn.append([trial.params for trial in study.trials])
    assert drawn[0] == drawn[1]
    assert len({one["x"] for one in drawn[0]}) == 5


@pytest.mark.parametrize(
    "pruner", ["median, startup_trials: 1", "asha, reduction_factor: 2", "hyperband, max_resource: 4"]
)
def test_pruners_end_the_worse_trials_early(pruner: str, tmp_path: Path) -> None:
    search = message_of(PARAMETERS + f"pruner: {{kind: {pruner}}}\n")
    study = open_study(search, f"sqlite:///{tmp_path}/s.sqlite3")
    pruned = []
    for number in range(8):
        trial = study.ask(distributions_of(search))
        for step in range(1, 5):
            trial.report(float(number), step)
            if trial.should_prune():
                pruned.append(number)
                break
        study.tell(trial, float(number), skip_if_finished=True)
    assert pruned
    assert 0 not in pruned


def test_a_parameter_s_text_is_short_and_exact() -> None:
    assert [parameter_text(value) for value in (0.1, 1e-05, 3, True, "a b")] == ["0.1", "1e-05", "3", "true", "a b"]
