"""Optuna's study of a sweep: its storage, sampler, pruner and distributions.

Optuna: Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.
"""

from __future__ import annotations

import base64
import os
import warnings
import zlib
from decimal import Decimal
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage

from torchyard_agent.protocol.sweep_messages import ParameterRange, Search

STUDY_NAME = "sweep"


class UnboundGridSampler(GridSampler):
    """A grid sampler for `ask` and `tell`.

    Optuna's own grid sampler calls `Study.stop`, which works only in `Study.optimize`.
    """

    def after_trial(self, *_: Any) -> None:
        """Does nothing: the coordinator counts the trials."""


def open_study(search: Search, storage: str | BaseStorage) -> optuna.Study:
    """Opens the study in a storage, or creates it.

    The sampler's seed depends on the number of trials that already exist. Otherwise, the sampler would repeat the
    random numbers of the first trials whenever the study is opened again.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=storage,
        study_name=STUDY_NAME,
        direction=search["objective"]["goal"],
        pruner=pruner_of(search),
        load_if_exists=True,
    )
    study.sampler = sampler_of(search, len(study.get_trials(deepcopy=False)))
    return study


def unpack(study: str, file: str) -> None:
    """Writes a study, encoded as in `sweep_messages.Sweep` (zlib and Base64), to an SQLite file."""
    with open(f"{file}.new", "wb") as new:
        new.write(zlib.decompress(base64.b64decode(study)))
    os.replace(f"{file}.new", file)


def distributions_of(search: Search) -> dict[str, BaseDistribution]:
    """Returns the distributions by parameter, in the order in which values are drawn."""
    return {name: _distribution(parameter) for name, parameter in search["parameters"].items()}


def _distribution(parameter: ParameterRange) -> BaseDistribution:
    kind, low, high, step = parameter["distribution"], parameter["low"], parameter["high"], parameter["step"]
    if kind == "categorical":
        return CategoricalDistribution(parameter["values"])
    if kind in ("int", "log_int"):
        last = _last(low, high, step or 1)
        return IntDistribution(int(low), int(last), log=kind == "log_int", step=int(step or 1))
    if step is None:
        return FloatDistribution(float(low), float(high), log=kind == "log_uniform")
    return FloatDistribution(float(low), float(_last(low, high, step)), step=float(step))


def _last(low: Any, high: Any, step: Any) -> Decimal:
    """Returns the greatest value up to `high` that is a whole number of steps above `low`.

    Optuna warns about an upper limit that cannot be reached from `low` in whole steps.
    """
    first, size = Decimal(str(low)), Decimal(str(step))
    return first + (Decimal(str(high)) - first) // size * size


def sampler_of(search: Search, repeats: int = 0) -> BaseSampler:
    settings = search["sampler"]
    kind, seed, startup = settings["kind"], settings.get("seed"), settings.get("startup_trials")
    if seed is not None:
        seed = (int(seed) + repeats) % 2**32
    if kind == "grid":
        return UnboundGridSampler(_grid(search), seed=settings.get("seed"))
    if kind == "random":
        return RandomSampler(seed=seed)
    if kind == "cma_es":
        return CmaEsSampler(seed=seed, n_startup_trials=1 if startup is None else startup)
    # If trials run concurrently, `constant_liar` keeps TPE from drawing values close to those of running trials.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # About `constant_liar`, for developers.
        return TPESampler(
            seed=seed, n_startup_trials=10 if startup is None else startup, constant_liar=search["parallel"] > 1
        )


def _grid(search: Search) -> dict[str, list[Any]]:
    grid: dict[str, list[Any]] = {}
    for name, distribution in distributions_of(search).items():
        if isinstance(distribution, CategoricalDistribution):
            grid[name] = list(distribution.choices)
        elif isinstance(distribution, IntDistribution):
            grid[name] = list(range(distribution.low, distribution.high + 1, distribution.step))
        elif isinstance(distribution, FloatDistribution) and distribution.step is not None:
            low, step = Decimal(str(distribution.low)), Decimal(str(distribution.step))
            count = int((Decimal(str(distribution.high)) - low) / step) + 1
            grid[name] = [float(low + number * step) for number in range(count)]
    return grid


def pruner_of(search: Search) -> BasePruner:
    given = {name: value for name, value in search["pruner"].items() if value is not None}
    kind = given.pop("kind", "none")
    if kind == "median":
        return MedianPruner(
            n_startup_trials=given.get("startup_trials", 5),
            n_warmup_steps=given.get("warmup_steps", 0),
            interval_steps=given.get("interval_steps", 1),
        )
    if kind == "asha":
        return SuccessiveHalvingPruner(
            min_resource=given.get("min_resource", 1), reduction_factor=given.get("reduction_factor", 4)
        )
    if kind == "hyperband":
        return HyperbandPruner(
            min_resource=given.get("min_resource", 1),
            max_resource=given.get("max_resource", "auto"),
            reduction_factor=given.get("reduction_factor", 3),
        )
    return NopPruner()
