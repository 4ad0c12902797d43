"""The choice of the fastest way to sum gradients, computed from the numbers of workers and reducers.

N workers have M bytes of gradients, and k reducers and all workers have links of B bytes/s in both directions at once.
In units of M/B, an exchange takes:

    ring            2(N−1)/N
    reducers        max(1, N/k)                      each worker sends and receives M; a reducer N·M/k
    mixed, k < N    2N(N−1)/D, D = N²+kN−2k          every worker also sums a share, (N−k)M/D; a reducer 2(N−1)M/D

The mixed plan is never slower than the other two, and equals the plan with reducers for k ≥ N. Among equally fast
plans, the simplest is chosen, so two workers use the ring.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReductionPlan:
    """A way to sum gradients.

    `weights` are the shares of each reducer, then of each worker, and add up to 1; they are empty for the ring.
    """

    kind: str
    """The kind of the exchange: `ring`, `reducers` or `mixed`."""
    time: float
    """The time of a step's exchange, in units of M/B (see the module's docstring)."""
    weights: tuple[float, ...]
    sentence: str


def times(workers: int, reducers: int) -> dict[str, float]:
    """Returns the time of each possible plan in units of M/B, beginning with the simplest plan."""
    if workers < 2:
        return {"ring": 0.0}
    found = {"ring": 2 * (workers - 1) / workers}
    if reducers:
        found["reducers"] = max(1.0, workers / reducers)
    if 0 < reducers < workers:
        found["mixed"] = 2 * workers * (workers - 1) / _denominator(workers, reducers)
    return found


def choose(workers: int, reducers: int, *, ring: bool = True) -> ReductionPlan:
    """Returns the fastest plan, with a sentence that explains it.

    Args:
        ring: Whether the ring may be chosen. If not, there must be reducers; a single worker uses them too.
    """
    found = times(workers, reducers)
    if not ring:
        del found["ring"]
        found = found or {"reducers": 1.0}
    # min() returns the first of equal plans, which is the simplest.
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
