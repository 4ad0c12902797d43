"""Determines a trial's objective and outcome, and why a sweep has failed. Does no I/O."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

COMPLETE, FAILED, PRUNED, INTERRUPTED = "complete", "failed", "pruned", "interrupted"


class Outcome(NamedTuple):
    """The outcome of a trial: COMPLETE, FAILED, PRUNED, or INTERRUPTED by the end of the sweep."""

    state: str
    value: float | None
    cause: str


class Measurement(NamedTuple):
    """A value of the objective, and the step at which it was reported.

    The step is None if the replica reports no steps.
    """

    value: float
    step: int | None


def measurement(metric: str, replicas: Sequence[str], metrics: Mapping[str, Any]) -> Measurement | None:
    """Returns the objective of the first replica, in plan order, that reports it as a finite number, or None."""
    for name in replicas:
        reported = metrics.get(name) or {}
        value = reported.get(metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            step = reported.get("step")
            return Measurement(float(value), int(step) if isinstance(step, (int, float)) else None)
    return None


def outcome(metric: str, replicas: Sequence[str], shown: Mapping[str, Any], *, pruned: bool, stopping: bool) -> Outcome:
    """Returns the outcome of a trial whose keeper has exited.

    Args:
        metric: The name of the objective.
        replicas: The names of the run's replicas in plan order.
        shown: The last state of the trial's run, as shown by its keeper or replayed from its journal.
        pruned: Whether the pruner ended the trial.
        stopping: Whether the sweep is being stopped.
    """
    if shown["ended"] and shown["state"] == "succeeded":
        found = measurement(metric, replicas, shown["metrics"])
        if found is not None:
            return Outcome(COMPLETE, found.value, "")
        return Outcome(FAILED, None, _missing(metric, shown["metrics"]))
    if shown["ended"] and pruned:
        return Outcome(PRUNED, None, "")
    if stopping:
        return Outcome(INTERRUPTED, None, "the sweep was stopped")
    if not shown["ended"]:
        return Outcome(FAILED, None, "its keeper died")
    return Outcome(FAILED, None, str(shown["reason"] or shown["state"]))


def _missing(metric: str, metrics: Mapping[str, Any]) -> str:
    """Returns why a trial that succeeded has no objective, with the names of the metrics that it reported."""
    if any(metric in (reported or {}) for reported in metrics.values()):
        return f"the objective {metric} was not a finite number at the end"
    names = sorted({name for reported in metrics.values() for name in (reported or {})})
    reported = f"reported were: {', '.join(names)}" if names else "the program reported no metrics"
    return f"the objective {metric} was never reported; {reported}"


_NUMBER = re.compile(r"\d+")


def sweep_failure(states: Sequence[str], causes: Sequence[str]) -> str:
    """Returns why a sweep has failed, or "" if a trial is complete.

    Causes that differ only by numbers, such as those of GPUs and nodes, count as the same.

    Args:
        states: The states of the trials that were not interrupted.
        causes: The causes of the trials that failed.
    """
    if COMPLETE in states or not states:
        return ""
    failed = sum(state == FAILED for state in states)
    if failed == len(states):
        which = "the only trial has" if failed == 1 else f"all {failed} trials have"
        text = f"{which} failed"
    else:
        text = f"no trial is complete: {failed} failed, and the pruner ended {len(states) - failed}"
    kinds = [_NUMBER.sub("0", cause) for cause in causes]
    if not kinds:
        return text
    kind, count = Counter(kinds).most_common(1)[0]
    cause = causes[kinds.index(kind)]
    if count == failed:
        return f"{text}: {cause}"
    which = f"{count} of them" if count > 1 else "for example"
    return f"{text}, {which} because: {cause}"
