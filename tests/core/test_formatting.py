"""Tests of formatting amounts, durations and times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from torchyard_core.formatting import age, bandwidth, clock, count, memory, seconds, since, size, span, wall_clock


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.00004, "0 s"), (0.0041, "4.1 ms"), (0.312, "312 ms"), (0.99961, "1.00 s"), (1.25, "1.25 s"),
     (12.34, "12.3 s"), (123.4, "123 s")],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (2.5, "2.5"), (3.01, "3"), (1204, "1,204")])
def test_counts(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7 B"), (1500, "1.5 kB"), (50e6, "50 MB"), (12.34e6, "12.3 MB"), (3.1e9, "3.1 GB")]
)
def test_sizes(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("mebibytes", "text"), [(4, "4 MB"), (1536, "1.5 GB"), (81559, "80 GB"), (0, "0 MB")])
def test_memory(mebibytes: float, text: str) -> None:
    assert memory(mebibytes) == text


@pytest.mark.parametrize(("bytes_s", "text"), [(1.1e9, "8.8 Gbit/s"), (11.75e6, "94 Mbit/s")])
def test_bandwidth(bytes_s: float, text: str) -> None:
    assert bandwidth(bytes_s) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1, "0 s"), (12, "12 s"), (300, "5 min"), (3 * 3600, "3 h"), (47 * 3600, "47 h"), (3 * 86400, "3 days")],
)
def test_ages(value: float, text: str) -> None:
    assert age(value) == text


def test_a_time_that_cannot_be_read_stays_as_it_is() -> None:
    assert since("soon") == "soon"
    assert since("2026-11-23T09:00:00") == "2026-11-23T09:00:00"
    assert since(datetime.now(UTC).isoformat()).endswith(" s ago")


def test_a_time_of_day_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = datetime(2026, 11, 23, 14, 21, 7).timestamp()
    assert (clock(seconds), clock(seconds, exact=True)) == ("14:21", "14:21:07")


def test_a_span_names_the_day_of_its_end_where_it_is_another() -> None:
    start = datetime(2026, 11, 23, 8, tzinfo=UTC)
    assert span(start, start.replace(hour=16), "Europe/Berlin") == "from Mon 23 Nov 09:00 to 17:00"
    assert span(start, start.replace(day=24), "Europe/Berlin") == "from Mon 23 Nov 09:00 to Tue 24 Nov 09:00"


def test_the_hour_that_an_autumn_night_repeats_is_shown_with_its_offset() -> None:
    found = [wall_clock(datetime(2026, 10, 25, hour, 30, tzinfo=UTC), "Europe/Berlin") for hour in (0, 1, 2)]
    assert found == ["02:30+02:00", "02:30+01:00", "03:30"]
