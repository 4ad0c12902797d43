"""Titles of runs: name, start and origin, as detailed as needed to distinguish runs with the same name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QCoreApplication

from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.run_state_types import when
from torchyard_gui.runs.labels import day_and_clock, day_or_clock

translate = QCoreApplication.translate


def start_of(run: KnownRun, runs: Sequence[KnownRun]) -> str:
    """Returns the start of a run, with the precision needed to distinguish it from other runs with the same name.

    The precision is a day, a minute or a second; if even the seconds are equal, the run's ID is returned. For a run
    that started today, the precision is at least a minute.
    """
    now = time.time()
    begin, others = when(run.submitted), [when(one.submitted) for one in _of_its_name(run, runs)]
    for form in (day_or_clock, day_and_clock, partial(day_and_clock, exact=True)):
        text = form(begin, now)
        if text not in {form(other, now) for other in others}:
            return text
    return run.run_id


def title_of(run: KnownRun, runs: Sequence[KnownRun]) -> str:
    """Returns the name of a run, with its start if another one of `runs` has the same name."""
    name = run.name or run.run_id
    return f"{name} · {start_of(run, runs)}" if _of_its_name(run, runs) else name


def restart_of(run: KnownRun, runs: Sequence[KnownRun]) -> str:
    """Returns `restart of` with the title of the run that this run restarts, or "" if it is not a restart."""
    if not run.restarted_from:
        return ""
    before = next((one for one in runs if one.run_id == run.restarted_from), None)
    if before is None:
        which = run.restarted_from
    else:
        which = start_of(before, runs) if before.name == run.name else title_of(before, runs)
    return translate("Runs", "restart of {run}").format(run=which)


def _of_its_name(run: KnownRun, runs: Sequence[KnownRun]) -> list[KnownRun]:
    return [one for one in runs if one.name == run.name and one.run_id != run.run_id]
