"""The cases of the proof: runs whose speed is predicted, and fleets for which a topology is recommended.

They come from a seed, except those that really compute. No constant of the predictions was fitted to any of them.
"""

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
MEASURED_S, FEWEST_STEPS = 10.0, 6


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
    is_busy: bool = False
    """Whether trainers compute. Otherwise they sleep, since all hosts share the cores of one computer."""

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
        return max(2, round(max(FEWEST_STEPS, count) / self.every)) * self.every


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


def busy_cases() -> tuple[Case, ...]:
    """Returns cases in which two workers compute, one on each core. An exchange uses the same cores."""
    fast, slow = 200, 100
    return (
        Case(100, "all_reduce", 2, 0, 16.0, 0.4, (fast, fast), is_busy=True),
        Case(101, "sandblaster", 2, 1, 4.0, 0.8, (fast,) * 3, is_busy=True),
        Case(102, "downpour", 2, 1, 4.0, 0.8, (slow,) * 3, is_busy=True),
        Case(103, "diloco", 2, 0, 16.0, 0.4, (slow, fast), {"inner_steps": 4}, is_busy=True),
    )


@dataclass(frozen=True)
class Choice:
    """A fleet and a model for which the advisor recommends a topology."""

    number: int
    megabytes: float
    compute_s: float
    rates_mbit: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Number of measured steps."""
        return max(FEWEST_STEPS, round(MEASURED_S / (self.compute_s + self.megabytes * 8 / min(self.rates_mbit))))


def choices(seed: int, count: int) -> Iterator[Choice]:
    """Yields fleets of 3 to 5 hosts, every third with a slow link, on which an exchange is no small part of a step."""
    random = Random(seed)
    number = 0
    while number < count:
        rates = [random.choice(RATES_MBIT[1:])] * random.randint(3, 5)
        if number % 3 == 2:
            rates[random.randrange(len(rates))] //= 2
        found = Choice(200 + number, random.choice(MEGABYTES), random.choice(COMPUTE_S), tuple(rates))
        if 0.3 * found.compute_s < found.megabytes * 8 / min(rates) < LONGEST_S / 2:
            yield found
            number += 1
