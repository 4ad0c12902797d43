"""Maps values to positions on the axis of a plot: linear, logarithmic, or one position per category. Does not depend on
Qt.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from torchyard_agent.protocol.sweep_messages import ParameterValue, parameter_text

LOG_FROM = 20.0
"""Minimum ratio of the greatest to the least value for a logarithmic scale, which also requires positive values."""


class Scale:
    """The scale of an axis. If all values are numbers, the scale extends from the least to the greatest number;
    otherwise, each value is a category.
    """

    def __init__(self, values: Iterable[ParameterValue]):
        found = list(values)
        self.categories: tuple[str, ...] = ()
        numbers = [float(value) for value in found if not isinstance(value, (str, bool))]
        if len(numbers) < len(found):
            self.categories = tuple(sorted({parameter_text(value) for value in found}))
        self.low, self.high = min(numbers, default=0.0), max(numbers, default=0.0)
        self.is_log = False
        if not self.categories and self.low > 0 and self.high / self.low >= LOG_FROM:
            # Chooses the scale, linear or logarithmic, that puts the median closer to the middle of the axis.
            middle = statistics.median(numbers)
            linear = abs(self.place(middle) - 0.5)
            self.is_log = True
            self.is_log = abs(self.place(middle) - 0.5) < linear

    def place(self, value: ParameterValue) -> float:
        """Returns the position of a value, from 0 to 1. A number outside the scale gets the position of the nearest
        end.
        """
        if self.categories:
            text = parameter_text(value)
            where = self.categories.index(text) if text in self.categories else 0
            return where / (len(self.categories) - 1) if len(self.categories) > 1 else 0.5
        if isinstance(value, str) or self.high == self.low:
            return 0.5
        number = min(max(float(value), self.low), self.high)
        if self.is_log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns the ticks as (position, label): all categories, or the least and the greatest number."""
        if self.categories:
            return [(self.place(each), each) for each in self.categories]
        if self.high == self.low:
            return [(0.5, f"{self.low:.4g}")]
        return [(0.0, f"{self.low:.4g}"), (1.0, f"{self.high:.4g}")]
