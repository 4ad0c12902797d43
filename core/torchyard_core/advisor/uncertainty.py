"""The 80% interval of a prediction, from the standard uncertainties of its independent parts.

Method: JCGM 100:2008, *Guide to the expression of uncertainty in measurement* (GUM). Standard uncertainties are
combined as the root of the sum of their squares (5.1). An uncertainty that was estimated from few measurements has few
degrees of freedom. The interval is therefore that of a t distribution, whose effective number of degrees of freedom
follows from the formula of Welch and Satterthwaite (annex G). Uncertainties that are estimated from the same
measurements are not independent, so the caller combines them into one part.

The parts (`prediction`) are the errors of the model; the standard error of the profile's mean, since a profile is
measured over a few steps; the standard error of the profile's standard deviation, on which the wait for the slowest
trainer depends; and, for a short run, the standard error of the mean over its steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt

Z80 = 1.2816
"""Half-width, in standard deviations, of the interval that contains 80% of a normal distribution."""
EXACT_T80 = (3.0777, 1.8856, 1.6377, 1.5332)
"""Half-widths of the 80% intervals of t distributions with 1, 2, 3 and 4 degrees of freedom."""


@dataclass(frozen=True)
class Uncertainty:
    """The standard uncertainty of one part, and its degrees of freedom."""

    value: float
    freedom: float = inf


def half_width(parts: Iterable[Uncertainty]) -> float:
    """Returns the half-width of the interval that contains 80% of the values, in the unit of the parts."""
    present = [each for each in parts if each.value > 0]
    square = sum(each.value**2 for each in present)
    if not square:
        return 0.0
    inverse = sum((each.value**2 / square) ** 2 / each.freedom for each in present)
    return t80(1 / inverse if inverse else inf) * sqrt(square)


def t80(freedom: float) -> float:
    """Returns the half-width, in standard uncertainties, of the interval that contains 80% of a t distribution.

    Degrees of freedom below 5 are rounded down, as in the GUM (G.4.1). From 5 on, the value is the Cornish-Fisher
    expansion (Abramowitz and Stegun 26.7.5), whose error is below 0.001.
    """
    if freedom < 5:
        return EXACT_T80[max(1, int(freedom)) - 1]
    first = (Z80**3 + Z80) / 4
    second = (5 * Z80**5 + 16 * Z80**3 + 3 * Z80) / 96
    return Z80 + first / freedom + second / freedom**2
