"""Tests of the checks that compare the clocks of a run's hosts."""

from __future__ import annotations

import pytest

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.clocks import Clock, check_clocks


def clocks(**seconds: float) -> list[Check]:
    return check_clocks({host: Clock(offset, 0.01) for host, offset in seconds.items()})


def test_clocks_that_agree_whatever_ours_says() -> None:
    [line] = clocks(a=3600.0, b=3604.0, c=3601.0)

    assert line.severity == "green"
    assert line.message == "clocks agree within 4.000 s"


def test_the_clock_that_is_off_is_named_by_the_middle_one() -> None:
    [line] = clocks(a=0.1, b=-42.0, c=0.0)

    assert line.severity == "amber"
    assert (line.host, line.message) == ("b", "the clock of b is 42.0 s behind the other hosts'.")
    assert "chrony" in line.hint


def test_a_slow_link_makes_no_clock_wrong() -> None:
    assert check_clocks({"a": Clock(0.0, 0.01), "b": Clock(7.0, 6.0)})[0].severity == "green"


def test_a_clock_is_read_without_the_time_that_the_host_took_to_answer() -> None:
    # The request and the answer take 0.1 s each, the host works for 3 s, and its clock is 10 s ahead.
    clock = Clock.read(100.0, {"received": 110.1, "answered": 113.1}, 103.2)

    assert clock.offset == pytest.approx(10.0)
    assert clock.error == pytest.approx(0.1)


def test_the_clock_of_a_single_host_is_not_compared() -> None:
    assert clocks(a=99.0) == []
