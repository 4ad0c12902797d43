"""The cases of the proof, generated from a seed. No constant of the predictions was fitted to these cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

MOST_HOSTS = 10
KINDS = ("all_reduce", "reduction_server", "sandblaster", "downpour", "hogwild", "diloco")
MEGABYTES = (4.0, 16.0, 40.0)
COMPUTE_S = (0.3, 0.7, 1.3)
RATES_MBIT = (50, 100, 200, 400)
SPREAD = 0.08
"""Standard deviation of a step's computing time, as a fraction of its mean."""
SHORTEST_S, LONGEST_S = 0.2, 4.0
"""Bounds on the time that a step's exchange alone takes in a case."""
WARM_UP = 3
MEASURED_S = 12.0


@dataclass(frozen=True)
class Case:
    """One run: a strategy with its numbers, a model, and the links of its hosts."""

    number: int
    kind: str
    workers: int
    servers: int
    megabytes: float
    compute_s: float
    rates_mbit: tuple[int, ...]
    """The rates of the workers' links, followed by those of the servers' links."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        servers = f"+{self.servers}" if self.servers else ""
        return f"{self.kind} {self.workers}{servers}"

    @property
    def is_unequal(self) -> bool:
        return len(set(self.rates_mbit)) > 1

    @property
    def exchange_s(self) -> float:
        """A rough estimate of a step's exchange time over the slowest link, in seconds."""
        alone = self.megabytes * 8 / min(self.rates_mbit)
        if self.kind in ("all_reduce", "hogwild", "diloco"):
            every = self.settings.get("sync_every", self.settings.get("inner_steps", 1))
            return 2 * (self.workers - 1) / self.workers * alone / every
        return max(1.0, self.workers / max(1, self.servers)) * alone

    @property
    def every(self) -> int:
        """Steps after which the pattern of exchanges repeats."""
        return int(self.settings.get("sync_every", self.settings.get("inner_steps", 1)))

    @property
    def warm_up(self) -> int:
        return WARM_UP if self.every == 1 else self.every + 1

    @property
    def steps(self) -> int:
        """Number of measured steps: about MEASURED_S seconds, rounded to a multiple of `every`."""
        count = MEASURED_S / (self.compute_s + (self.exchange_s if self.kind == "sandblaster" else 0.0))
        count = min(count, MEASURED_S / max(self.exchange_s, 0.1))
        return max(2, round(max(8.0, count) / self.every)) * self.every


def cases(seed: int, count: int) -> Iterator[Case]:
    """Yields cases: all strategies in turn, with small and large models, and with unequal links in every third case."""
    random = Random(seed)
    number = 0
    while number < count:
        case = _case(random, number)
        if SHORTEST_S / 2 < case.exchange_s < LONGEST_S or (case.workers == 1 and case.exchange_s < LONGEST_S):
            yield case
            number += 1


def _case(random: Random, number: int) -> Case:
    kind = KINDS[number % len(KINDS)]
    least = 1 if kind in ("all_reduce", "sandblaster") else 2
    workers = random.randint(least, 8)
    servers = 0
    settings: dict[str, Any] = {}
    if kind in ("reduction_server", "sandblaster", "downpour"):
        servers = random.randint(1, min(8, MOST_HOSTS - workers))
    if kind == "reduction_server" and number // len(KINDS) % 2:  # Half of these cases have more reducers than workers.
        workers = random.randint(2, 4)
        servers = random.randint(workers + 1, min(8, MOST_HOSTS - workers))
    if kind == "hogwild":
        settings["sync_every"] = 4
    if kind == "diloco":
        settings["inner_steps"] = random.choice([4, 8])
    if kind == "reduction_server":
        settings["bucket_mb"] = random.choice([4, 16])
    rate = random.choice(RATES_MBIT)
    rates = [rate] * (workers + servers)
    if number % 3 == 2:
        for slow in random.sample(range(len(rates)), k=max(1, len(rates) // 4)):
            rates[slow] = rate // 2
    megabytes, compute = random.choice(MEGABYTES), random.choice(COMPUTE_S)
    return Case(number, kind, workers, servers, megabytes, compute, tuple(rates), settings)
