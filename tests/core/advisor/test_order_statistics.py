"""Tests of the expected maximum of normally distributed times, against published values."""

from __future__ import annotations

import math

import pytest

from torchyard_core.advisor.order_statistics import expected_maximum


def test_maxima_of_standard_normals_are_those_of_the_tables() -> None:
    # Teichroew (1956): expected largest of 2, 4 and 8 standard normals.
    for count, mean in ((2, 0.56419), (4, 1.02938), (8, 1.42360)):
        found, _ = expected_maximum([(0.0, 1.0)] * count)
        assert found == pytest.approx(mean, abs=1e-3)
    _, spread = expected_maximum([(0.0, 1.0)] * 2)
    assert spread == pytest.approx(math.sqrt(1 - 1 / math.pi), abs=1e-3)


def test_a_constant_or_much_slower_trainer_determines_the_maximum() -> None:
    assert expected_maximum([(0.5, 0.0), (0.7, 0.0)]) == (0.7, 0.0)
    assert expected_maximum([(0.5, 0.01), (2.0, 0.0)]) == (2.0, 0.0)
    assert expected_maximum([(0.5, 0.01), (2.0, 0.1)]) == pytest.approx((2.0, 0.1), rel=1e-2)
    assert expected_maximum([]) == (0.0, 0.0)
