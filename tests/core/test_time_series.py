"""Tests that a time series returns its samples in order and without copying them, however many there are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchyard_core.replica_metrics import CAPACITY, TimeSeries, capacity_for


@pytest.mark.parametrize("capacity", [1, 2, 7, 64, 100])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 500])
def test_the_newest_samples_are_kept_in_order(capacity: int, count: int) -> None:
    ring = TimeSeries(capacity, ["loss"])
    for second in range(count):
        assert ring.append(float(second), {"loss": second * 2.0})
    expected = list(range(max(0, count - capacity), count))
    assert ring.times().tolist() == expected
    assert ring.values("loss").tolist() == [second * 2 for second in expected]
    assert ring.tail("loss", 3).tolist() == [second * 2 for second in expected[-3:]]
    assert len(ring) == len(expected)


def test_an_unreported_value_is_a_gap_and_the_last_value_stays_known() -> None:
    ring = TimeSeries(10)
    ring.append(1.0, {"loss": 0.5, "gpu": 90.0})
    ring.append(2.0, {"gpu": None})
    assert math.isnan(ring.values("loss")[1])
    assert ring.last("loss") == 0.5
    assert ring.last("gpu") == 90.0
    assert ring.last("power_w") is None
    assert ring.last_time == 2.0


def test_a_journal_that_is_replayed_adds_nothing_twice() -> None:
    ring = TimeSeries(10, ["loss"])
    assert ring.append(5.0, {"loss": 1.0})
    assert not ring.append(5.0, {"loss": 9.0})
    assert not ring.append(4.0, {"loss": 9.0})
    assert ring.values("loss").tolist() == [1.0]


def test_what_a_plot_is_given_is_one_piece_of_memory() -> None:
    ring = TimeSeries(100, ["loss", "gpu"])
    for second in range(1000):
        ring.append(float(second), {"loss": 1.0})
    assert ring.times().flags["C_CONTIGUOUS"]
    assert ring.values("loss").flags["C_CONTIGUOUS"]
    assert np.shares_memory(ring.values("loss"), ring.values("loss"))


def test_many_replicas_keep_less_each() -> None:
    assert capacity_for(1) == CAPACITY
    assert capacity_for(200) == CAPACITY
    assert 300 <= capacity_for(1000) < CAPACITY


def test_fields_of_a_scripts_own_come_later_and_are_no_measured_ones() -> None:
    ring = TimeSeries(100, ["gpu"])
    for second in range(70):  # The first block of memory is too small for 70 samples.
        ring.append(float(second), {"gpu": 90.0})
    assert np.isnan(ring.values("own.gpu")).all()
    assert len(ring.values("own.gpu")) == 70
    ring.append(70.0, {"gpu": 91.0, "own.gpu": -1.0, "unknown": 1.0})
    assert ring.own == ["gpu"]
    assert (ring.last("gpu"), ring.last("own.gpu")) == (91.0, -1.0)
    assert np.isnan(ring.values("own.gpu")[:-1]).all()
    for second in range(71, 300):
        ring.append(float(second), {"own.gpu": float(second)})
    assert ring.values("own.gpu").tolist() == list(range(200, 300))
    ring.append(300.0, {f"own.name{number}": 1.0 for number in range(40)})
    assert len(ring.own) == 32
