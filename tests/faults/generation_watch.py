"""Samples every 100 ms, from outside the hosts, which generations of a run have live processes on each host."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.faults.runs import environment_of, is_alive, pids_of
from tests.lab import Lab

EVERY_S = 0.1


@dataclass(frozen=True)
class Sample:
    """The generations that had live processes at one time, by host."""

    time: float
    alive: dict[str, set[int]] = field(default_factory=dict)

    @property
    def generations(self) -> set[int]:
        return set().union(*self.alive.values())


class GenerationWatch:
    """Takes samples in a thread until the context exits.

    Taking a sample takes time. Two generations therefore count as alive at once only if a process of the older one is
    still alive after the newer one has been found.
    """

    def __init__(self, lab: Lab, run_id: str):
        self._lab = lab
        self._run_id = run_id
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="generations")
        self.samples: list[Sample] = []
        self.overlaps: list[str] = []
        """Descriptions of generations that were alive at once; must stay empty."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0.0)

    def seen(self, generation: int) -> set[str]:
        """Returns the hosts on which a process of this generation was alive in at least one sample."""
        return {host for sample in list(self.samples) for host, alive in sample.alive.items() if generation in alive}

    def _watch(self) -> None:
        next_sample = time.monotonic()
        while not self._stopped.wait(max(0.0, next_sample - time.monotonic())):
            next_sample = time.monotonic() + EVERY_S
            self._sample()

    def _sample(self) -> None:
        began = time.monotonic()
        found: dict[int, tuple[str, int]] = {}
        for host in self._lab.hosts:
            for pid in pids_of(host):
                environment = environment_of(pid)
                if environment.get("TORCHYARD_RUN_ID") == self._run_id:
                    found[pid] = host.name, int(environment["TORCHELASTIC_RESTART_COUNT"])
        newest = max((generation for _, generation in found.values()), default=0)
        older = {pid: seen for pid, seen in found.items() if seen[1] < newest}
        if older:
            self.overlaps += [
                f"{pid} of generation {generation} on {host} beside {newest}"
                for pid, (host, generation) in older.items()
                if is_alive(pid)
            ]
        alive: dict[str, set[int]] = {}
        for host, generation in found.values():
            alive.setdefault(host, set()).add(generation)
        self.samples.append(Sample(began, alive))
