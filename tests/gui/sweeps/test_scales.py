"""Tests of the scales of plot axes: linear, logarithmic and categorical."""

from __future__ import annotations

import pytest

from torchyard_gui.sweeps.scales import Scale


def test_numbers_are_placed_between_the_least_and_the_greatest() -> None:
    scale = Scale([2, 4.0, 10])
    assert [scale.place(value) for value in (2, 6, 10, 11)] == [0.0, 0.5, 1.0, 1.0]
    assert scale.ticks() == [(0.0, "2"), (1.0, "10")]


def test_values_over_orders_of_magnitude_are_logarithmic_and_uniform_ones_are_not() -> None:
    assert Scale([1e-4, 1e-3, 1e-2]).is_log
    assert Scale([1e-4, 1e-3, 1e-2]).place(1e-3) == pytest.approx(0.5)
    assert not Scale([0.006, 0.1, 0.2, 0.3, 0.4, 0.5]).is_log
    assert not Scale([-1.0, 0.5, 100.0]).is_log


def test_texts_and_truth_values_are_categories() -> None:
    assert Scale(["sgd", "adamw", "sgd", "lion"]).ticks() == [(0.0, "adamw"), (0.5, "lion"), (1.0, "sgd")]
    assert Scale([True, False]).ticks() == [(0.0, "false"), (1.0, "true")]
    assert Scale([True]).place(True) == 0.5


def test_one_value_and_none_lie_in_the_middle() -> None:
    assert Scale([3.0]).ticks() == [(0.5, "3")]
    assert Scale([]).place(1.0) == 0.5
