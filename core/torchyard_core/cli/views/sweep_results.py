"""Output of a sweep's results: the numbers of its trials, and the best one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchyard_agent.protocol.sweep_messages import parameter_text
from torchyard_core.next_steps import NextStep, ResumeSweep, ShowSweep, WriteTrial


def trials_text(results: Mapping[str, Any]) -> str:
    """Returns the numbers of trials in `SweepTable.results`, such as `12 of 50 trials, 1 failed, 2 interrupted`.

    The first number does not include interrupted trials, since their parameters are tried again.
    """
    done = results["complete"] + results["failed"] + results["pruned"]
    parts = [f"{done} of {results['wanted']} trials", f"{results['failed']} failed"]
    parts += [f"{results[state]} {state}" for state in ("pruned", "interrupted") if results[state]]
    return ", ".join(parts)


def best_text(results: Mapping[str, Any], metric: str) -> str:
    """Formats the best trial with its value and parameters. If no trial is complete, the text says so."""
    best = results["best"]
    if best is None:
        return "best: none, since no trial is complete"
    params = ", ".join(f"{name}={parameter_text(value)}" for name, value in best["params"].items())
    return f"best: trial {best['trial']}, {metric} {best['value']:g}, with {params}"


def next_steps(results: Mapping[str, Any], run_id: str, state: str) -> list[NextStep]:
    """Returns what the user can do after the end of a sweep, whose run has ended in `state`."""
    done = results["complete"] + results["failed"] + results["pruned"]
    steps: list[NextStep] = [ShowSweep(run_id)] if done or results["interrupted"] else []
    if results["best"] is not None:
        steps.append(WriteTrial(run_id))
    if state == "stopped" and done < results["wanted"]:
        steps.append(ResumeSweep(run_id))
    return steps
