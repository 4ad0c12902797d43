"""Slow trainers (stragglers): those whose computing time is long in comparison with the median of all trainers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

SLOW_FACTOR = 1.5
"""Multiple of the median computing time from which a trainer counts as slow."""
MIN_TRAINERS = 3
"""Minimum number of trainers for which a median is meaningful."""


def slow_replicas(compute_s: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the slow trainers, each with its computing time as a multiple of the median.

    The result is empty if fewer than `MIN_TRAINERS` trainers have a computing time.
    """
    reported = {name: seconds for name, seconds in compute_s.items() if seconds is not None and seconds > 0}
    if len(reported) < MIN_TRAINERS:
        return {}
    median = statistics.median(reported.values())
    return {name: seconds / median for name, seconds in reported.items() if seconds >= SLOW_FACTOR * median}
