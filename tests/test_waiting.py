"""Tests of the return value, the deadline and the error of `wait_until` and `eventually`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tests.waiting import NotInTime, eventually, wait_until


def test_a_wait_returns_the_first_true_value() -> None:
    values = iter([None, 0, "", "found", "later"])
    assert wait_until(lambda: next(values)) == "found"
    values = iter([None, 0, "", "found", "later"])
    assert asyncio.run(eventually(lambda: next(values))) == "found"


def test_a_failed_wait_reports_the_state_at_its_deadline() -> None:
    asked: list[int] = []
    with pytest.raises(NotInTime, match=r"^not within 0.02 s: asked \d+ times$"):
        wait_until(lambda: asked.append(1), 0.02, what=lambda: f"asked {len(asked)} times")
    assert len(asked) > 1
    with pytest.raises(NotInTime, match=r"^not within 0.02 s: a file$"):
        asyncio.run(eventually(lambda: False, 0.02, what="a file"))


def test_a_slow_condition_gets_at_most_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read at the beginning, before each check, and after each check that fails.
    now = iter([0.0, 1.0, 4.0, 10.0])
    pauses: list[float] = []
    # Only `tests.waiting` gets the fake clock, because threads of earlier tests may still read the real one.
    monkeypatch.setattr("tests.waiting.time", SimpleNamespace(monotonic=lambda: next(now)))
    answers = iter([False, True])
    assert wait_until(lambda: next(answers), pause=pauses.append)
    assert pauses == [3.0]
