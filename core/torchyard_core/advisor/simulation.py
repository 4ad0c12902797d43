"""Discrete-event simulation of exchanges: buckets that pass links and server CPUs in the order of their arrival.

Method: a queueing network with first-in-first-out resources (Banks et al., Discrete-Event System Simulation). A
*resource* is a direction of a host's link, or a CPU. A *stage* uses several resources at the same time, each for a time
proportional to the bytes, and ends when its last resource is done. Buckets are cut into pieces, so that stages overlap
as pipelined transfers do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

MOST_PIECES = 96
"""Maximum number of pieces into which the buckets of a step are cut."""
SMALLEST_PIECE = 64 * 1024
"""The smallest chunk that workers exchange with parameter servers."""


@dataclass(frozen=True)
class Stage:
    """A stage through which each piece passes, with the resources that it uses. Resources are identified by numbers."""

    seconds_per_byte: tuple[tuple[int, float], ...]
    fixed_s: float = 0.0
    """Additional time per piece, such as a latency, during which the resources are not occupied."""


@dataclass(frozen=True)
class Simulated:
    """The time at which an exchange ended, and how long it used each resource, in seconds."""

    end_s: float
    busy_s: dict[int, float]


def pieces_of(buckets: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """Cuts buckets (ready time, bytes) into pieces of about equal size."""
    total = sum(size for _, size in buckets)
    piece = max(SMALLEST_PIECE, total / MOST_PIECES)
    found = []
    for ready, size in buckets:
        count = max(1, round(size / piece))
        found += [(ready, size / count)] * count
    return found


def simulate(pieces: Sequence[tuple[float, float]], stages: Sequence[Stage]) -> Simulated:
    """Returns the time at which the last piece has passed all stages, and how long each resource was used.

    `pieces` contains (ready time, bytes), in sending order.
    """
    free: dict[int, float] = {}
    busy: dict[int, float] = {}
    end = max((ready for ready, _ in pieces), default=0.0)
    if not stages:
        return Simulated(end, busy)
    waiting = [(ready, number, 0) for number, (ready, _) in enumerate(pieces)]
    heapq.heapify(waiting)
    while waiting:
        now, number, at = heapq.heappop(waiting)
        size = pieces[number][1]
        stage = stages[at]
        done = now
        for resource, seconds in stage.seconds_per_byte:
            took = seconds * size
            free[resource] = finished = max(now, free.get(resource, 0.0)) + took
            busy[resource] = busy.get(resource, 0.0) + took
            done = max(done, finished)
        done += stage.fixed_s
        if at + 1 < len(stages):
            heapq.heappush(waiting, (done, number, at + 1))
        else:
            end = max(end, done)
    return Simulated(end, busy)


ROUNDS, FIRST_ROUNDS = 14, 4
"""Number of simulated exchanges of each asynchronous group, and number of initial exchanges that are ignored."""


def simulate_groups(
    compute_s: Sequence[float], stages: Sequence[Sequence[Stage]], size: float, pieces: int
) -> list[float]:
    """Returns the mean time between two exchanges of each group, where exchanges overlap with computation.

    A group begins an exchange once its computation is done and its previous exchange has ended. The group then begins
    its next computation.

    Args:
        compute_s: The computing time between two exchanges, by group.
        stages: The stages of each group's exchange. Groups share resources by their numbers.
        size: Bytes of an exchange.
        pieces: Number of pieces into which an exchange is cut.
    """
    free: dict[int, float] = {}
    count = len(compute_s)
    left = [0] * count
    """Number of pieces of each group's current exchange that have not been transferred yet."""
    has_computed = [False] * count
    rounds = [0] * count
    began: list[list[float]] = [[] for _ in range(count)]
    # Groups start independently, so each of them begins at a different point of its first step.
    events = [(each * (1 + number / count), number, -1) for number, each in enumerate(compute_s)]
    heapq.heapify(events)

    def begin(now: float, group: int) -> None:
        has_computed[group] = False
        began[group].append(now)
        rounds[group] += 1
        if rounds[group] > ROUNDS:
            return
        left[group] = pieces
        for _ in range(pieces):
            heapq.heappush(events, (now, group, 0))
        heapq.heappush(events, (now + compute_s[group], group, -1))

    while events:
        now, group, at = heapq.heappop(events)
        if at < 0:
            has_computed[group] = True
            if not left[group]:
                begin(now, group)
            continue
        if at == len(stages[group]):
            left[group] -= 1
            if not left[group] and has_computed[group]:
                begin(now, group)
            continue
        done = now
        for resource, seconds in stages[group][at].seconds_per_byte:
            free[resource] = finished = max(now, free.get(resource, 0.0)) + seconds * size / pieces
            done = max(done, finished)
        heapq.heappush(events, (done + stages[group][at].fixed_s, group, at + 1))
    return [(times[-1] - times[FIRST_ROUNDS]) / (len(times) - 1 - FIRST_ROUNDS) for times in began]
