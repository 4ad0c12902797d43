"""Texts for sweeps, trials and their values."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from torchyard_agent.protocol.sweep_messages import ParameterValue, parameter_text
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.sweeps.trial_table import SweepTable, Trial
from torchyard_gui.bridge.run_state_types import when
from torchyard_gui.canvas import labels
from torchyard_gui.widgets.run_rows import state_as_of

translate = QCoreApplication.translate
MARKS = {"complete": "succeeded", "pruned": "cancelled", "interrupted": "planned"}


def mark_of(state: str) -> str:
    """Returns the name of the mark that `paint_state` draws for the state of a sweep or trial."""
    return MARKS.get(state, state or "unknown")


def state_word(state: str) -> str:
    """Returns the name of the state of a sweep or trial."""
    return {
        "complete": translate("Sweeps", "complete"),
        "pruned": translate("Sweeps", "pruned"),
        "interrupted": translate("Sweeps", "interrupted"),
    }.get(state) or labels.state_word(state)


def sweep_state(run: KnownRun) -> str:
    """Returns the name of a sweep's state, with the time of the last contact if the state may be outdated."""
    return state_as_of(run, state_word(run.state))


def amount(value: float | None) -> str:
    """Returns a value with at most four significant digits; None becomes "–"."""
    return "–" if value is None else f"{value:.4g}"


def parameter(value: ParameterValue | None) -> str:
    """Returns the value of a parameter with at most three significant digits; None becomes "–"."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else parameter_text(value)


def parameters(trial: Trial) -> str:
    """Returns the parameters of a trial in full, such as `lr=0.1, depth=3`."""
    return ", ".join(f"{name}={parameter_text(value)}" for name, value in trial.params.items())


def value_of(trial: Trial) -> float | None:
    """Returns the objective of a trial or, if there is none, the last reported value. Returns None without either."""
    return trial.value if trial.value is not None else trial.values[-1][1] if trial.values else None


def progress(table: SweepTable) -> list[str]:
    """Returns texts about how many trials have ended, how many have failed or were interrupted, and which trial is
    best.
    """
    done = table.count("complete", "failed", "pruned")
    parts = [translate("Sweeps", "{done} of {wanted} trials").format(done=done, wanted=table.wanted)]
    if failed := table.count("failed"):
        parts.append(translate("Sweeps", "{count} failed").format(count=failed))
    if interrupted := table.count("interrupted"):
        parts.append(translate("Sweeps", "{count} interrupted").format(count=interrupted))
    if (best := table.best) is not None:
        text = translate("Sweeps", "best: trial {trial}, {metric} {value}")
        parts.append(text.format(trial=best.trial, metric=table.metric, value=amount(best.value)))
    return parts


def seconds_of(trial: Trial, now: float) -> float | None:
    """Returns the duration of a trial, or the time since its start while it runs, in seconds. Returns None for a trial
    that has not started.
    """
    started = when(trial.started)
    if started is None or trial.state == "waiting":
        return None
    ended = when(trial.ended)
    return max(0.0, (now if ended is None else ended) - started)


def about_trial(table: SweepTable, trial: Trial) -> str:
    """Returns a one-line description of a trial: number, state, value, cause, parameters and hosts."""
    value = value_of(trial)
    best = table.best
    parts = [
        translate("Sweeps", "Trial {number}").format(number=trial.trial),
        state_word(trial.state),
        f"{table.metric} {amount(value)}" if value is not None else "",
        translate("Sweeps", "best so far") if best is not None and best.trial == trial.trial else "",
        trial.cause,
        parameters(trial),
        " ".join(trial.hosts),
    ]
    return " · ".join(part for part in parts if part)
