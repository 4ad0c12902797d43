"""Tests of how `torchyard run` follows a run: its times, and the question after Ctrl-C."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.cli import interrupts
from torchyard_core.cli.commands.run import JournalClock, with_desktop_timings
from torchyard_core.cli.interrupts import choose_on_interrupt
from torchyard_core.cli.views.run_progress import JsonView

OWN = {"checked_s": 1.0, "sent_s": 2.0, "submitted_s": 3.0}


def entry(event: str, time: str, **details: Any) -> dict[str, Any]:
    return {"epoch": "e", "seq": 0, "event": event, "time": f"2026-11-28T09:00:{time}Z", **details}


def timings(*entries: dict[str, Any], **measured: float | None) -> dict[str, float | None]:
    clock = JournalClock()
    for one in entries:
        clock.note(one)
    known = {"started_s": None, "first_step_s": None, "ended_s": None, **measured}
    found: dict[str, float | None] = with_desktop_timings({**entries[-1], "timings": known}, OWN, clock)["timings"]
    return found


def test_times_that_no_keeper_has_measured_are_those_of_the_journal() -> None:
    state = "run_state"
    begun = entry("asked", "00.000"), entry(state, "00.500", state="waiting"), entry(state, "04.250", state="running")
    telemetry = {"event": "telemetry", "time": "2026-11-28T08:00:00.000Z"}
    checked = {"checked_s": 1.0, "sent_s": 2.0}
    found = timings(*begun, telemetry, entry("run_ended", "10.500"))
    assert found == {**checked, "started_s": 7.25, "first_step_s": None, "ended_s": 13.5}
    never_started = timings(*begun[:2], entry("run_ended", "10.500"))
    assert never_started == {**checked, "started_s": None, "first_step_s": None, "ended_s": 13.5}


def test_times_that_a_keeper_has_measured_are_used() -> None:
    found = timings(entry("asked", "00"), entry("run_ended", "10"), started_s=0.5, ended_s=5.0)
    assert (found["started_s"], found["ended_s"]) == (3.5, 8.0)


def test_times_of_a_keeper_that_continued_an_interrupted_run_are_replaced_by_those_of_the_journal() -> None:
    state = "run_state"
    first = entry("asked", "00"), entry(state, "01", state="running"), entry("report", "02", first=True)
    again = entry("interrupted", "20"), entry(state, "30", state="running"), entry("report", "31", first=True)
    found = timings(*first, *again, entry("run_ended", "40"), started_s=0.5, first_step_s=1.5, ended_s=10.5)
    assert (found["started_s"], found["first_step_s"], found["ended_s"]) == (4.0, 5.0, 43.0)


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-28T09:00:00"])
def test_a_malformed_time_of_a_host_is_no_error(time: str) -> None:
    clock = JournalClock()
    clock.note(entry("asked", "00"))
    clock.note({**entry("run_ended", "10"), "time": time})


@pytest.mark.parametrize(
    ("state", "reason", "sentence"),
    [
        ("draft", "", "Run r is starting."),
        ("running", "", "Run r is running."),
        (
            "waiting",
            "job 55_[1-7%2] waits in the queue: Resources",
            "Run r is waiting: job 55_[1-7%2] waits in the queue: Resources.",
        ),
    ],
)
def test_the_question_after_ctrl_c_says_in_which_state_the_run_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, reason: str, sentence: str
) -> None:
    monkeypatch.setattr(interrupts, "ask", lambda question: "d")
    assert choose_on_interrupt(JsonView(), {"run_id": "r", "state": state, "reason": reason}) == "detach"
    assert capsys.readouterr().err.strip() == sentence
