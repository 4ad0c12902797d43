"""Comparison of several procedures (the arms) in one run.

The arms alternate (A B B A), so that noise on the machine affects all of them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Promise:
    """A promise about a measured value: it must be at most `limit`."""

    name: str
    value: float
    limit: float
    unit: str = "times"

    @property
    def is_kept(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "kept" if self.is_kept else "MISSED"
        return f"{verdict:6}  {self.name}: {self.value:.2f} {self.unit} (at most {self.limit:g})"


def timed(work: Callable[[], object]) -> float:
    """Returns the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(arms: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measures all arms in the order A B B A A B B A … and returns the values of each arm.

    A first measurement of each arm is discarded.
    """
    found: dict[str, list[float]] = {name: [] for name in arms}
    for measure in arms.values():
        measure()
    for number in range(rounds):
        for name, measure in reversed(arms.items()) if number % 2 else arms.items():
            found[name].append(measure())
    return found


def show(title: str, found: dict[str, list[float]], unit: str = "s") -> None:
    """Prints the median and the range of each arm."""
    print(f"\n{title}")
    for name, values in found.items():
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"  {name:44} {statistics.median(values):8.3f} {unit}  ({spread}, n={len(values)})")


def record(name: str, found: dict[str, list[float]], promises: list[Promise]) -> None:
    """Writes the values as JSON to benchmarks/results, and prints which promises are kept."""
    RESULTS.mkdir(exist_ok=True)
    content = {
        "arms": found,
        "promises": [{"name": p.name, "value": p.value, "limit": p.limit, "kept": p.is_kept} for p in promises],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    for promise in promises:
        print(f"  {promise}")


def ratio(found: dict[str, list[float]], one: str, other: str) -> float:
    """Returns the median of the arm `one` divided by the median of the arm `other`."""
    return statistics.median(found[one]) / statistics.median(found[other])
