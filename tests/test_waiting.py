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


@pytest.mark.parametrize(
    ("check_s", "pauses"),
    [
        # The first pause is the shortest; later ones are a twentieth of the time waited so far.
        (0.0, [0.005, 0.005, 0.005, 0.05, 0.1]),
        # A slow check is paused four times as long, but not longer than the longest pause.
        (0.02, [0.08, 0.08, 0.08, 0.08, 0.1]),
        # A very slow one gets half of the time.
        (3.0, [3.0, 3.0, 3.0, 3.0, 3.0]),
    ],
)
def test_the_more_a_check_costs_and_the_longer_a_wait_lasts_the_longer_are_the_pauses(
    monkeypatch: pytest.MonkeyPatch, check_s: float, pauses: list[float]
) -> None:
    waited = [0.0, 0.01, 0.1, 1.0, 60.0]
    # The clock is read at the beginning, before each check, and after each check that fails.
    now = iter([0.0, *(time for end in waited for time in (end - check_s, end)), 100.0])
    taken: list[float] = []
    # Only `tests.waiting` gets the fake clock, because threads of earlier tests may still read the real one.
    monkeypatch.setattr("tests.waiting.time", SimpleNamespace(monotonic=lambda: next(now)))
    answers = iter([False] * len(waited) + [True])
    assert wait_until(lambda: next(answers), pause=taken.append)
    assert taken == pytest.approx(pauses)
