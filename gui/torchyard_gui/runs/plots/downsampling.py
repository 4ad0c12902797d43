"""Reduces curves to the visible resolution, keeping the minimum and the maximum of each interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Values = NDArray[np.float32]


def extremes(times: Times, values: Values, begin: float, end: float, most: int) -> tuple[Times, Values]:
    """Returns at most about `most` points between `begin` and `end`, and one further point beyond each end.

    If there are more points, each interval of time is reduced to its minimum and its maximum. Intervals begin at
    multiples of their length, a power of two, so that a growing curve does not flicker.
    """
    first = max(0, int(np.searchsorted(times, begin)) - 1)
    last = min(len(times), int(np.searchsorted(times, end, side="right")) + 1)
    times, values = times[first:last], values[first:last]
    if len(times) <= most:
        return times, values
    stretch = 2.0 ** math.ceil(math.log2((times[-1] - times[0]) / (most / 2)))
    numbers = np.floor(times / stretch)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(numbers)) + 1))
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    thin_times = np.repeat(times[starts], 2)
    thin_times[1::2] += stretch / 2
    # The newest point must not be drawn later than it was measured.
    np.minimum(thin_times, times[-1], out=thin_times)
    thin_values = np.empty(2 * len(starts), values.dtype)
    thin_values[::2], thin_values[1::2] = low, high
    return thin_times, thin_values


def bounds(pieces: list[Values]) -> tuple[float, float] | None:
    """Returns the minimum and maximum of all arrays, or None if they contain no number."""
    known = [piece for piece in pieces if len(piece) and not np.isnan(piece).all()]
    if not known:
        return None
    return float(min(np.nanmin(piece) for piece in known)), float(max(np.nanmax(piece) for piece in known))


CALM = 0.4
"""Minimum width of a range of values, as a fraction of the larger absolute value of its ends. In a narrower range,
noise of a few percent would fill the plot.
"""


def calmed(low: float, high: float) -> tuple[float, float]:
    """Returns the range from `low` to `high`, widened to at least CALM times the larger absolute value of its ends."""
    least = CALM * max(abs(low), abs(high))
    if high - low >= least:
        return low, high
    middle = (low + high) / 2
    return middle - least / 2, middle + least / 2
