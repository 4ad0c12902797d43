"""Tests of the length that is proposed for the booking of a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from torchyard_core.booking.proposed_length import proposed_length
from torchyard_core.launch.runs.history import RunRecord

HOUR = timedelta(hours=1)
NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)


def test_the_proposed_length_is_a_quarter_more_than_the_last_run_took() -> None:
    def record(name: str, minutes: float, state: str = "succeeded") -> RunRecord:
        ended = (NOW + timedelta(minutes=minutes)).isoformat()
        return RunRecord("r", name, "", "gpu-a", ("gpu-a",), NOW.isoformat(), state, ended=ended)

    assert proposed_length([record("x", 60), record("x", 6000)], "x") == timedelta(minutes=75)
    # The proposed length is rounded up to a multiple of 15 min.
    assert proposed_length([record("x", 61)], "x") == timedelta(minutes=90)
    assert proposed_length([record("y", 60), record("x", 5, "failed")], "x") == 8 * HOUR
    assert proposed_length([], "x") == 8 * HOUR
