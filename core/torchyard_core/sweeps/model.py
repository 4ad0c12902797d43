"""The search file as immutable values: all keys that a file may contain, with their defaults.

The docstring below each key is also its description in `resources/search.schema.json`. The hosts receive the values as
`torchyard_agent.protocol.sweep_messages.Search`, from which the coordinator creates Optuna's objects.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field

from torchyard_agent.protocol.sweep_messages import Search as SearchMessage
from torchyard_core.topology.model import Amount, FrozenModel

MAX_TRIALS = 100_000
"""Maximum number of trials, as protection against typing errors."""
MAX_PARALLEL = 100
MAX_STEPS = 10**9
"""Maximum number of steps of a distribution."""
MAX_WHOLE = 2**53
"""Largest whole number in a search file. Numbers may be read as 64-bit floats, which are exact up to this limit."""


class Distribution(StrEnum):
    """The distribution from which values of a parameter are drawn."""

    UNIFORM = "uniform"
    LOG_UNIFORM = "log_uniform"
    INT = "int"
    LOG_INT = "log_int"
    CATEGORICAL = "categorical"


class Goal(StrEnum):
    """The direction in which the objective is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class SamplerKind(StrEnum):
    """The method that chooses the parameters of the next trial."""

    GRID = "grid"
    RANDOM = "random"
    TPE = "tpe"
    CMA_ES = "cma_es"


class PrunerKind(StrEnum):
    """The method that ends trials early."""

    NONE = "none"
    MEDIAN = "median"
    ASHA = "asha"
    HYPERBAND = "hyperband"


class Parameter(FrozenModel):
    """A parameter of the search, which replaces `{params.NAME}` in the arguments of the topology."""

    distribution: Distribution
    """The distribution of the values: `uniform`, `log_uniform`, `int`, `log_int` or `categorical`."""
    low: Amount | None = None
    """The smallest value of a numeric distribution."""
    high: Amount | None = None
    """The largest value of a numeric distribution."""
    step: Annotated[Amount, Field(gt=0)] | None = None
    """The distance of neighbouring values of `uniform` or `int`, counted from `low`. Without it, `uniform` is
    continuous, and `int` has every whole number.
    """
    values: tuple[str | int | float | bool, ...] | None = None
    """The values of a categorical distribution."""

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return self.distribution in (Distribution.INT, Distribution.LOG_INT)

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """The values for a grid search; None for a continuous or logarithmic distribution, or too many values."""
        if self.values is not None:
            return self.values
        step = self.step or (1 if self.distribution is Distribution.INT else None)
        if step is None or self.low is None or self.high is None or not self.low <= self.high:
            return None
        if (self.high - self.low) / step > MAX_TRIALS:
            return None
        low, size = Decimal(str(self.low)), Decimal(str(step))  # With floats, 0.1 + 0.2 is not 0.3.
        found = [low + number * size for number in range(int((Decimal(str(self.high)) - low) // size) + 1)]
        return tuple(int(value) for value in found) if self.is_whole else tuple(float(value) for value in found)


class Objective(FrozenModel):
    """The metric by which trials are compared."""

    metric: Annotated[str, Field(min_length=1)]
    """A metric that the program reports: `loss`, `throughput`, or a name that it passes to `cluster.report`."""
    goal: Goal
    """`minimize` or `maximize`. The last reported value of a trial counts."""


class Sampler(FrozenModel):
    """The method that chooses the parameters of the next trial."""

    kind: SamplerKind = SamplerKind.TPE
    """`grid`, `random`, `tpe` (tree-structured Parzen estimator) or `cma_es` (covariance matrix adaptation)."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    """Seed of the random numbers. Trials that run one after another are then the same in every sweep."""
    startup_trials: Annotated[int, Field(ge=0)] | None = None
    """Number of random trials with which `tpe` (default 10) and `cma_es` (default 1) begin."""


class Pruner(FrozenModel):
    """The method that ends trials early, by the values of the objective at each reported step."""

    kind: PrunerKind = PrunerKind.NONE
    """`none`, `median`, `asha` (asynchronous successive halving) or `hyperband`."""
    startup_trials: Annotated[int, Field(ge=0)] | None = None
    """`median`: number of finished trials before the first trial is ended early (default 5)."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """`median`: number of steps before which no trial is ended (default 0)."""
    interval_steps: Annotated[int, Field(ge=1)] | None = None
    """`median`: number of steps between two decisions (default 1)."""
    min_resource: Annotated[int, Field(ge=1)] | None = None
    """`asha`, `hyperband`: number of steps of the shortest trials (default 1)."""
    max_resource: Annotated[int, Field(ge=1)] | None = None
    """`hyperband`: number of steps of a complete trial. Default: that of the first finished trials."""
    reduction_factor: Annotated[int, Field(ge=2)] | None = None
    """`asha` (default 4), `hyperband` (default 3): of this many trials, one continues."""


class Search(FrozenModel):
    """A search file."""

    version: Literal[1]
    """Version of the format."""
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Name of the sweep. Default: the name of the topology."""
    parameters: Annotated[dict[str, Parameter], Field(min_length=1)]
    """The parameters by name, in the order in which they are drawn."""
    objective: Objective
    """The metric by which trials are compared."""
    sampler: Sampler = Sampler()
    """The method that chooses the parameters of the next trial."""
    pruner: Pruner = Pruner()
    """The method that ends trials early."""
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] | None = None
    """Number of trials, including failed ones and those that were ended early. Default for `grid`: every point once;
    the other samplers need a number.
    """
    parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """Maximum number of trials that run side by side, each on hosts and GPUs of its own."""

    @property
    def grid_points(self) -> int | None:
        """Number of points of the grid; None if a parameter has no grid."""
        grids = [parameter.grid for parameter in self.parameters.values()]
        return None if None in grids else prod(len(grid) for grid in grids if grid is not None)

    def as_message(self) -> SearchMessage:
        """Returns a valid search in the form in which it is sent to the hosts."""
        data = self.model_dump(mode="json", include={"parameters", "objective", "sampler", "pruner"})
        return SearchMessage(
            parameters=data["parameters"],
            objective=data["objective"],
            sampler=data["sampler"],
            pruner=data["pruner"],
            trials=self.number_of_trials,
            parallel=self.parallel,
        )

    @property
    def number_of_trials(self) -> int:
        """The number of trials of a valid search."""
        number = self.trials if self.trials is not None else self.grid_points
        assert number is not None
        return number
