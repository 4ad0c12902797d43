"""Groups of a run's replicas, by pool or by host, each with a summary."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QCoreApplication

from torchyard_core.throughput import run_throughput
from torchyard_core.topology.replicas import replicas_of
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.bridge.run_state_types import ReplicaStatus
from torchyard_gui.runs.labels import memory, percent, rate

translate = QCoreApplication.translate

Grouping = Literal["", "pool", "host"]
"""The property by which replicas are grouped; empty if they are not grouped."""
URGENT = ("failed", "unknown", "warning")
"""Marks that come first in a summary, in this order."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Replicas that are listed under one heading, with a summary."""

    name: str
    tracks: tuple[ReplicaStatus, ...]

    @property
    def title(self) -> str:
        count = len(self.tracks)
        one, many = translate("Runs", "{name} (1 replica)"), translate("Runs", "{name} ({count} replicas)")
        return (one if count == 1 else many).format(name=self.name, count=count)

    def state_summary(self, state_of: Callable[[ReplicaStatus], tuple[str, str]]) -> tuple[str, str]:
        """Returns the mark of the group and the number of replicas with each mark, such as `1 failed, 7 running`. The
        mark of the group is the most urgent one or, if none is urgent, the most frequent one.
        """
        marks = Counter(state_of(track)[0] for track in self.tracks)
        ordered = sorted(marks, key=lambda mark: (URGENT.index(mark) if mark in URGENT else len(URGENT), -marks[mark]))
        words = {"warning": translate("Runs", "slow")}
        return ordered[0], ", ".join(f"{marks[mark]} {words.get(mark, mark)}" for mark in ordered)

    @property
    def throughput(self) -> str:
        """The total throughput of the group's trainers as text; empty if it is unknown."""
        total = run_throughput({track.name: track.ring.last("throughput") for track in self.tracks})
        return "" if total is None else rate(total)

    @property
    def use(self) -> str:
        """The median use of the replicas that have not ended, as text: of their GPUs or, for replicas without GPUs, of
        their CPUs. Empty if it is unknown.
        """
        known = _known(track.ring.last("gpu" if track.gpus else "cpu") for track in self._live)
        return percent(statistics.median(known)) if known else ""

    @property
    def memory(self) -> str:
        known = _known(track.ring.last("gpu_memory_mb" if track.gpus else "memory_mb") for track in self._live)
        return memory(sum(known)) if known else ""

    @property
    def gpus(self) -> str:
        return str(sum(len(track.gpus) for track in self.tracks) or "–")

    @property
    def _live(self) -> list[ReplicaStatus]:
        return [track for track in self.tracks if not track.is_over]


def groups_of(picture: RunState, by: Grouping) -> list[ReplicaGroup]:
    """Returns the groups in the order of their first replicas, or no groups if `by` is empty."""
    if not by:
        return []
    pools = {replica.name: replica.pool.name for replica in replicas_of(picture.plan.topology)} if picture.plan else {}
    found: dict[str, list[ReplicaStatus]] = {}
    for track in picture.tracks.values():
        name = picture.place_of(track.host) if by == "host" else pools.get(track.name, track.role)
        found.setdefault(name, []).append(track)
    return [ReplicaGroup(name, tuple(tracks)) for name, tracks in found.items()]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
