"""The trials of a sweep, read from the coordinator's table (`torchyard_agent.sweeps.sweep_table`) by pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.protocol.sweep_messages import ParameterValue, parameter_text
from torchyard_core.topology.model import Topology

if TYPE_CHECKING:
    from torchyard_core.sweeps.model import Search

MAX_ROWS = 100_000
STATES = ("waiting", "running", "complete", "failed", "pruned", "interrupted")


@dataclass(frozen=True)
class Trial:
    """A trial with its parameters and outcome. Times are in RFC 3339 format in UTC; unknown times are empty."""

    trial: str
    """The number of the trial as text, counted from "1"."""
    state: str
    """`waiting`, `running`, `complete`, `failed`, `pruned`, or `interrupted` by the end of an earlier sweep."""
    params: Mapping[str, ParameterValue]
    value: float | None
    """The objective of a complete trial, or the last reported value of a pruned one."""
    run_id: str
    hosts: tuple[str, ...]
    cause: str
    """Why the trial failed or was interrupted."""
    started: str
    ended: str
    values: tuple[tuple[int, float], ...]
    """Reported values of the objective with their steps."""
    job: str = ""
    """The Slurm job that last ran the trial, such as `24_3`; "" before the trial has started, and over SSH."""

    @property
    def can_be_stopped(self) -> bool:
        """Whether the trial is running, or is queued on a cluster: it has a run, but no hosts yet."""
        return self.state == "running" or (self.state == "waiting" and bool(self.run_id) and not self.hosts)


@dataclass(frozen=True)
class SweepTable:
    """The trials of a sweep, and its settings."""

    run_id: str
    name: str
    state: str
    """`running`, `stopping`, `finished` or `stopped`; `waiting` if the sweep waits before its first trial."""
    metric: str
    goal: str
    parameters: tuple[str, ...]
    wanted: int
    """The number of trials to run."""
    slots: tuple[tuple[str, ...], ...]
    """The hosts of each slot. Trials in different slots run concurrently."""
    lost: tuple[str, ...]
    """Names of the hosts that the sweep has lost."""
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    """The importance of parameters, the most important first; empty while there are too few trials."""
    study: str
    """SHA-256 of the copy of the study; empty before the first trial has ended."""

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best objective, or the first of several equal ones; None if there is none."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]
        sign = 1.0 if self.goal == "minimize" else -1.0
        return min(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def best_so_far(self) -> list[tuple[int, float]]:
        """Returns the number of each complete trial with the best objective so far, in the order of the trials."""
        choose: Callable[[float, float], float] = min if self.goal == "minimize" else max
        found: list[tuple[int, float]] = []
        for trial in self.trials:
            if trial.state == "complete" and trial.value is not None:
                found.append((int(trial.trial), choose(trial.value, found[-1][1]) if found else trial.value))
        return found

    def count(self, *states: str) -> int:
        return sum(trial.state in states for trial in self.trials)

    def results(self) -> dict[str, Any]:
        """Returns the numbers of trials by state, and the best trial, for machine-readable output."""
        best = self.best
        return {
            "wanted": self.wanted,
            **{state: self.count(state) for state in ("complete", "failed", "pruned", "interrupted", "running")},
            "best": None if best is None else {"trial": best.trial, "value": best.value, "params": dict(best.params)},
        }

    def trial(self, number: str) -> Trial | None:
        return next((trial for trial in self.trials if trial.trial == number), None)

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {**asdict(self), "best": best.trial if best is not None else None}


_WITHOUT_TRIALS = {
    RunState.WAITING.value: "waiting",
    RunState.STOPPING.value: "stopping",
    RunState.STOPPED.value: "stopped",
    RunState.SUCCEEDED.value: "finished",
    RunState.FAILED.value: "finished",
}
"""The state of a sweep whose coordinator has not written a table, by the run's state; `running` for other states."""


def table_without_trials(run_id: str, name: str, run_state: str, search: Search) -> SweepTable:
    """Returns the table of a sweep whose coordinator has not written one, because no trial has begun."""
    return SweepTable(
        run_id=run_id,
        name=name,
        state=_WITHOUT_TRIALS.get(run_state, "running"),
        metric=search.objective.metric,
        goal=search.objective.goal.value,
        parameters=tuple(search.parameters),
        wanted=search.number_of_trials,
        slots=(),
        lost=(),
        trials=(),
        importances={},
        study="",
    )


def read_table(data: Any) -> SweepTable:
    """Converts a table from a host's JSON data. Raises ValueError if the data are malformed."""
    try:
        rows = data["trials"]
        if len(rows) > MAX_ROWS:
            raise ValueError(f"{len(rows)} trials are over the limit of {MAX_ROWS}")
        goal = str(data["goal"])
        if goal not in ("minimize", "maximize"):
            raise ValueError(f"the goal {goal}")
        return SweepTable(
            run_id=str(data["run_id"]),
            name=str(data["name"]),
            state=str(data["state"]),
            metric=str(data["metric"]),
            goal=goal,
            parameters=tuple(map(str, data["parameters"])),
            wanted=int(data["wanted"]),
            slots=tuple(tuple(map(str, hosts)) for hosts in data["slots"]),
            lost=tuple(map(str, data["lost"])),
            trials=tuple(_trial(row) for row in rows),
            importances={str(name): _number(value) for name, value in data["importances"].items()},
            study=str(data["study"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the table of a sweep is malformed: {error!r}") from error


def _trial(row: Any) -> Trial:
    state, number = str(row["state"]), str(row["trial"])
    if state not in STATES or not number.isdecimal():
        raise ValueError(f"the trial {number} has the state {state}")
    return Trial(
        trial=number,
        state=state,
        params={str(name): _value(value) for name, value in row["params"].items()},
        value=None if row["value"] is None else _number(row["value"]),
        run_id=str(row["run_id"]),
        hosts=tuple(map(str, row["hosts"])),
        cause=str(row["cause"]),
        started=str(row["started"]),
        ended=str(row["ended"]),
        values=tuple((int(step), _number(value)) for step, value in row["values"]),
        job=str(row.get("job", "")),
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _value(value: Any) -> ParameterValue:
    if isinstance(value, (str, bool)):
        return value
    _number(value)
    number: int | float = value
    return number


_PLACEHOLDER = re.compile(r"\{params\.([A-Za-z_][A-Za-z0-9_]*)\}")


def topology_of_trial(topology: Topology, trial: Trial) -> Topology:
    """Returns the topology for an ordinary run of a trial: the trial's parameters are inserted into the arguments."""
    texts = {name: parameter_text(value) for name, value in trial.params.items()}

    def filled(words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), word) for word in words)

    program = topology.program
    changed = {key: filled(words) for key in ("command", "args") if (words := getattr(program, key))}
    pools = [pool.model_copy(update={"args": filled(pool.args)}) if pool.args else pool for pool in topology.pools]
    return topology.model_copy(update={"program": program.model_copy(update=changed), "pools": tuple(pools)})
