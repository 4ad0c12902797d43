"""Chooses the fastest way to sum gradients, depending on the numbers of workers and reducers.

Each of N workers has M bytes of gradients, and the workers and k reducers have full-duplex links of B bytes/s. In units
of M/B, an exchange takes:

    ring            2(N−1)/N
    reducers        max(1, N/k)                      each worker sends and receives M; a reducer N·M/k
    mixed, k < N    2N(N−1)/D, D = N²+kN−2k          every worker also sums a share, (N−k)M/D; a reducer 2(N−1)M/D

The mixed plan is never slower than the other two plans. If k ≥ N, it is the same as the plan with reducers. Of equally
fast plans, the simplest is chosen. Two workers therefore use the ring.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReductionPlan:
    """A division of the summation of gradients among reducers and workers.

    `weights` contains the fraction of the gradients that each process sums: first the reducers, then the workers. The
    fractions add up to 1. For the ring, `weights` is empty.
    """

    kind: str
    """The kind of the exchange: `ring`, `reducers` or `mixed`."""
    time: float
    """The time that the exchange of a step takes, in units of M/B (bytes of gradients / bytes per second of a link)."""
    weights: tuple[float, ...]
    sentence: str


def times(workers: int, reducers: int) -> dict[str, float]:
    """Returns the time of each possible plan in units of M/B. The simplest plan comes first."""
    if workers < 2:
        return {"ring": 0.0}
    found = {"ring": 2 * (workers - 1) / workers}
    if reducers:
        found["reducers"] = max(1.0, workers / reducers)
    if 0 < reducers < workers:
        found["mixed"] = 2 * workers * (workers - 1) / _denominator(workers, reducers)
    return found


def choose(workers: int, reducers: int, *, ring: bool = True) -> ReductionPlan:
    """Returns the fastest plan, with a sentence that explains the choice.

    Args:
        ring: Whether the ring may be chosen. If not, there must be reducers, and even a single worker uses them.
    """
    found = times(workers, reducers)
    if not ring:
        del found["ring"]
        found = found or {"reducers": 1.0}
    # Of equally fast plans, min() returns the first, which is the simplest.
    kind = min(found, key=lambda name: round(found[name], 9))
    weights: tuple[float, ...] = ()
    if kind == "reducers":
        weights = (1 / reducers,) * reducers + (0.0,) * workers
    elif kind == "mixed":
        whole = _denominator(workers, reducers)
        weights = (2 * (workers - 1) / whole,) * reducers + ((workers - reducers) / whole,) * workers
    return ReductionPlan(kind, found[kind], weights, _sentence(kind, workers, reducers, found))


def _denominator(workers: int, reducers: int) -> int:
    return workers * workers + reducers * workers - 2 * reducers


def _sentence(kind: str, workers: int, reducers: int, found: dict[str, float]) -> str:
    what = {
        "ring": "goes round the ring of workers",
        "reducers": "goes through the reducers",
        "mixed": "goes through the reducers and the workers, which all sum a share",
    }
    names = {"ring": "the ring", "reducers": "reducers alone", "mixed": "both together"}
    others = [f"{names[name]} {time:.2f}" for name, time in found.items() if name != kind]
    than = f", against {' and '.join(others)}" if others else ""
    parts = f"{workers} worker{'s' * (workers != 1)} and {reducers} reducer{'s' * (reducers != 1)}"
    return (
        f"With {parts} the exchange {what[kind]}: it takes {found[kind]:.2f} times what one copy of the gradients "
        f"takes on a host's link{than}."
    )
