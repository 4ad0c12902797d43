"""Tests that runs with the same name are distinguished by their start, and that a restart names the original run."""

from __future__ import annotations

from datetime import datetime

from torchyard_core.formatting import utc_timestamp
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.runs.run_titles import restart_of, start_of, title_of


def noon() -> float:
    """Returns 12:30:05 of this day. A constant would be the previous day's if tests run past midnight."""
    return datetime.now().replace(hour=12, minute=30, second=5, microsecond=0).timestamp()


def known(run_id: str, name: str, at: float, restarted_from: str = "") -> KnownRun:
    state = ("succeeded", "", utc_timestamp(at), "gpu-a", ("gpu-a",))
    return KnownRun(
        run_id, name, *state, is_fresh=True, submitted=utc_timestamp(at), restarted_from=restarted_from
    )  # fmt: skip


def test_a_name_alone_is_the_title_of_a_run_without_a_namesake() -> None:
    runs = [known("a", "digits", noon()), known("b", "resnet", noon())]
    assert [title_of(run, runs) for run in runs] == ["digits", "resnet"]
    assert start_of(runs[0], runs) == "12:30"


def test_namesakes_have_their_start_as_exactly_as_needed() -> None:
    runs = [known("a", "digits", noon()), known("b", "digits", noon() + 3600), known("c", "digits", noon() + 7)]
    assert [title_of(run, runs) for run in runs] == ["digits · 12:30:05", "digits · 13:30", "digits · 12:30:12"]
    twins = [known("a", "digits", noon()), known("b", "digits", noon())]
    assert [title_of(run, twins) for run in twins] == ["digits · a", "digits · b"]
    old = known("d", "digits", noon() - 40 * 86400)
    assert ":" not in start_of(old, runs)  # No other run of this name started on that day, so the title needs no time.
    older = known("e", "digits", noon() - 40 * 86400 - 600)
    assert start_of(old, [old, older]) == f"{start_of(old, runs)} 12:30"


def test_a_restart_names_the_run_that_it_restarts() -> None:
    first = known("a", "digits", noon())
    second = known("b", "digits", noon() + 3600, restarted_from="a")
    third = known("c", "resnet", noon() + 3600, restarted_from="a")
    runs = [third, second, first]
    assert restart_of(first, runs) == ""
    assert restart_of(second, runs) == "restart of 12:30"
    assert restart_of(third, runs) == "restart of digits · 12:30"
    assert restart_of(second, [second]) == "restart of a"
