"""Corrections of predictions, derived from the differences between predicted and measured steps of past runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev

from torchyard_core.formatting import counted
from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.registry import spec_of

NEWEST = 5
"""Maximum number of runs from which the correction of a scope is derived."""
LOWEST, HIGHEST = 0.5, 2.0
"""Bounds of each factor. A factor outside these bounds is assumed to have another cause, such as other users' load."""


@dataclass(frozen=True)
class Correction:
    """Factors by which the parts of a predicted step are multiplied.

    Each factor is the median of the newest runs' ratios of measured to predicted time.
    """

    compute: float = 1.0
    """Factor of the computing time. It also applies to the wait for the slowest trainer, which grows in proportion."""
    exchange: float = 1.0
    """Factor of the exchange time; 1 if no run measured it."""
    runs: int = 0
    compute_spread: float = 0.0
    """Standard deviation of the runs' factors of computing, as a share of `compute`; 0 with fewer than two runs."""
    exchange_spread: float = 0.0

    def step_s(self, computed_s: float, exchange_s: float) -> float:
        """Returns the corrected step time.

        Args:
            computed_s: The predicted step time without the exchange.
            exchange_s: The predicted time by which the exchange extends the step.
        """
        return self.compute * computed_s + self.exchange * exchange_s


@dataclass(frozen=True)
class Scope:
    """The predictions to which a correction applies: those of one strategy with trainers on certain kinds of hosts."""

    kind: StrategyKind
    host_kinds: tuple[str, ...]
    """The distinct kinds of the trainers' hosts, sorted."""

    @staticmethod
    def of(kind: StrategyKind, host_kinds: Iterable[str]) -> Scope:
        """Returns the scope of a strategy with trainers on hosts of `host_kinds`.

        A topology without a strategy counts as all-reduce, as in recommendations.
        """
        return Scope(StrategyKind.ALL_REDUCE if kind is StrategyKind.NONE else kind, tuple(sorted({*host_kinds})))


@dataclass(frozen=True)
class Ratios:
    """Ratios of measured to predicted times of one run."""

    scope: Scope
    compute: float
    exchange: float | None
    """Ratio of the exchange times; None if the exchange is too small a part of the predicted step to be measured."""


def corrections_of(runs: Sequence[Ratios]) -> dict[Scope, Correction]:
    """Returns the correction of each scope, derived from its newest runs. `runs` is sorted from newest to oldest."""
    by_scope: dict[Scope, list[Ratios]] = {}
    for run in runs:
        by_scope.setdefault(run.scope, []).append(run)
    found = {}
    for scope, ratios in by_scope.items():
        newest = ratios[:NEWEST]
        compute = [each.compute for each in newest]
        exchange = [each.exchange for each in newest if each.exchange is not None]
        found[scope] = Correction(
            _bounded(median(compute)),
            _bounded(median(exchange)) if exchange else 1.0,
            len(newest),
            _spread(compute),
            _spread(exchange),
        )
    return found


def _spread(factors: Sequence[float]) -> float:
    """Returns the standard deviation of factors as a share of their median, or 0 for fewer than two factors."""
    middle = median(factors) if len(factors) > 1 else 0.0
    return stdev(factors) / middle if middle > 0 else 0.0


def _bounded(factor: float) -> float:
    return min(HIGHEST, max(LOWEST, factor))


def correction_remarks(corrections: Mapping[Scope, Correction]) -> list[str]:
    """Returns sentences for the user: one about each correction, and one about the predictions without a correction."""
    found = []
    for scope, each in corrections.items():
        exchange = f", exchange ×{each.exchange:.2f}" if each.exchange != 1 else ""
        found.append(
            f"{spec_of(scope.kind).title} on {' and '.join(scope.host_kinds)} is predicted with the measurements of "
            f"{counted(each.runs, 'run')}: computing ×{each.compute:.2f}{exchange}."
        )
    if found:
        factors = [factor for each in corrections.values() for factor in (each.compute, each.exchange)]
        if LOWEST in factors or HIGHEST in factors:
            found.append(
                f"Factors are limited to {LOWEST:g} and {HIGHEST:g}. A larger measured difference probably has another "
                "cause, such as other load; the predicted intervals do not include it."
            )
        found.append("Topologies without such measurements are predicted from the profile alone.")
    return found
