"""The maximum of several random durations. A synchronous step takes as long as its slowest trainer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

POINTS = 256
REACH = 6.0
"""Half-width of the integration interval, in standard deviations from the means."""

_ERF = np.vectorize(math.erf, otypes=[float])


def expected_maximum(durations: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Returns the mean and standard deviation of the maximum of independent normal durations.

    `durations` contains the mean and standard deviation of each duration.

    Method: the distribution function of the maximum is the product of the durations' distribution functions; the
        moments are integrals over this product (David and Nagaraja, Order Statistics, 3rd edition, section 3.1).

    Returns (0, 0) if there are no durations.
    """
    counts = Counter(durations)
    if not counts:
        return 0.0, 0.0
    noisy = {each: count for each, count in counts.items() if each[1] > 0}
    floor = max((mean for mean, spread in counts if spread <= 0), default=-math.inf)
    if not noisy:
        return floor, 0.0
    low = max(floor, max(mean - REACH * spread for mean, spread in noisy))
    high = max(mean + REACH * spread for mean, spread in noisy)
    if high <= low:
        return floor, 0.0
    at = np.linspace(low, high, POINTS)
    below = np.ones(POINTS)
    for (mean, spread), count in noisy.items():
        below *= (0.5 * (1 + _ERF((at - mean) / (spread * math.sqrt(2))))) ** count
    above = 1 - below
    width = (high - low) / (POINTS - 1)
    over = _integral(above, width)
    square = _integral(2 * (at - low) * above, width)
    return low + over, math.sqrt(max(0.0, square - over**2))


def _integral(values: np.ndarray, width: float) -> float:
    """Returns the integral by the trapezoidal rule (`np.trapezoid` is not in numpy 1)."""
    return float(values.sum() - (values[0] + values[-1]) / 2) * width
