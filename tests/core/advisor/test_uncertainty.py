"""Tests of combined uncertainties against tables and sampled values."""

from __future__ import annotations

from math import inf, sqrt
from random import Random
from statistics import fmean, stdev

import pytest

from torchyard_core.advisor.uncertainty import Uncertainty, half_width, t80


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 3.078), (2, 1.886), (4, 1.533), (5, 1.476), (8, 1.397), (30, 1.310), (inf, 1.282)]
)
def test_quantiles_of_the_t_distribution_are_those_of_tables(freedom: float, table: float) -> None:
    assert t80(freedom) == pytest.approx(table, abs=0.003)


def test_uncertainties_are_combined_as_the_root_of_the_sum_of_squares() -> None:
    assert half_width([]) == 0.0
    assert half_width([Uncertainty(0.0, 3)]) == 0.0
    assert half_width([Uncertainty(3.0), Uncertainty(4.0)]) == pytest.approx(1.2816 * 5)
    assert half_width([Uncertainty(2.0, 4)]) == pytest.approx(1.533 * 2, rel=1e-3)
    few, many = ([Uncertainty(3.0), Uncertainty(4.0, freedom)] for freedom in (4, 40))
    assert 1.2816 * 5 < half_width(many) < half_width(few)


def test_four_of_five_means_of_few_measurements_lie_in_the_interval() -> None:
    random = Random(3)
    inside = 0
    for _ in range(2000):
        first, later = ([random.gauss(1.0, 0.2) for _ in range(count)] for count in (5, 8))
        spread = stdev(first)
        half = half_width([Uncertainty(spread * sqrt(1 / 5 + 1 / 8), 4)])
        inside += abs(fmean(later) - fmean(first)) <= half
    assert 0.78 <= inside / 2000 <= 0.85
