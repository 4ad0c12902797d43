"""Duration of a step's exchange over a ring, over reducers, or over trainers and reducers (mixed).

The unit is M/B, the time to send the gradients (size M) over one host's link (bandwidth B). The formulas apply to N
trainers, S reducers, full-duplex links of equal bandwidth, and pipelined transfers. Runs use the same formulas
(`torchyard_roles.strategies.reduction_server.reduction_plan`); a test compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """The processes that sum the gradients."""

    RING = "ring"
    REDUCERS = "reducers"
    MIXED = "mixed"
    """Reducers and trainers each sum a part of the gradients."""


@dataclass(frozen=True)
class ReductionCost:
    """The fastest reduction for a number of trainers and reducers, and the durations of all reductions."""

    best: Reduction
    times: dict[Reduction, float]
    """Durations in M/B of the possible reductions.

    MIXED is included only if there are fewer reducers than trainers. Otherwise, it is not faster than REDUCERS.
    """

    @property
    def time(self) -> float:
        return self.times[self.best]


def ring_time(trainers: int) -> float:
    """Returns the duration of an exchange over a ring in M/B: 2(N−1)/N."""
    return 2 * (trainers - 1) / trainers


def reducers_time(trainers: int, reducers: int) -> float:
    """Returns the duration of an exchange over reducers in M/B: max(1, N/S)."""
    return max(1.0, trainers / reducers)


def mixed_time(trainers: int, reducers: int) -> float:
    """Returns the duration of a mixed exchange in M/B: 2N(N−1)/(N²+kN−2k) for N trainers and k < N reducers."""
    divisor = trainers**2 + reducers * trainers - 2 * reducers
    return 2 * trainers * (trainers - 1) / divisor


def mixed_parts(trainers: int, reducers: int) -> tuple[float, float]:
    """Returns the parts of the gradients that each trainer and each reducer sums in a mixed exchange.

    These parts load all links equally if each participant has a link of its own.
    """
    of_reducer = mixed_time(trainers, reducers) / trainers
    return (1 - reducers * of_reducer) / trainers, of_reducer


def fastest_reduction(trainers: int, reducers: int) -> ReductionCost:
    """Returns the fastest reduction. If several are equally fast, the ring is preferred, then reducers alone."""
    if trainers < 2:
        return ReductionCost(Reduction.RING, {Reduction.RING: 0.0})
    times = {Reduction.RING: ring_time(trainers)}
    if reducers:
        times[Reduction.REDUCERS] = reducers_time(trainers, reducers)
        if reducers < trainers:
            times[Reduction.MIXED] = mixed_time(trainers, reducers)
    return ReductionCost(min(times, key=lambda reduction: round(times[reduction], 9)), times)


def reducers_that_beat_the_ring(trainers: int) -> int | None:
    """Returns the lowest number of reducers that are faster than a ring, S > N²/(2(N−1)), or None if there is none."""
    if trainers < 3:
        return None  # A ring of two trainers takes 1 M/B, the minimum of any exchange.
    return trainers**2 // (2 * (trainers - 1)) + 1


def reducers_for_bandwidth(trainers: int, trainer_gbps: float, reducer_gbps: float) -> int:
    """Returns the number of reducers that match the trainers' total bandwidth, which is Vertex AI's sizing rule.

    For example, 8 trainers with 100 Gbps links need 25 reducers with 32 Gbps links. Raises ValueError for links without
    bandwidth.
    """
    if trainer_gbps <= 0 or reducer_gbps <= 0:
        raise ValueError("links have a bandwidth above 0 Gbps")
    return max(1, math.ceil(trainers * trainer_gbps / reducer_gbps))
