"""Samples on their way to whoever shows them: the latest of each host wins, and what it says of each replica."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_agent.protocol.metrics_report import METRICS, own
from torchyard_core.replica_metrics import OWN

Sample = Mapping[str, Any]
"""A host's answer to `telemetry.sample`; names and units in the agent's `Sampler.sample`."""
Values = dict[str, float | None]

SLOW = 1.5
"""A trainer that computes this many times as long as the median one is slow."""
ENOUGH = 3
"""Fewer trainers have no median worth the name."""


class Latest:
    """The newest sample of each host that nobody has taken yet. Put on any thread, taken on any other.

    Whoever is too busy to look for a while misses the samples in between, and never falls behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: dict[str, Sample] = {}

    def put(self, host: str, sample: Sample) -> bool:
        """Whether it is the first that waits."""
        with self._lock:
            first = not self._by_host
            self._by_host[host] = sample
            return first

    def take(self) -> dict[str, Sample]:
        """What has come since, by host."""
        with self._lock:
            taken, self._by_host = self._by_host, {}
            return taken


def replica_values(sample: Sample, run_id: str, gpus: Mapping[str, Sequence[str]]) -> dict[str, Values]:
    """What a host's sample says of each replica of a run there, by the fields of `rings.FIELDS`.

    `gpus`: UUIDs of each replica's GPUs. A replica with several has their mean use and temperature, and their
    memory and power in all.
    """
    measured = {gpu.get("uuid"): gpu for gpu in sample.get("gpus", [])}
    processes, reports = sample.get("replicas", {}), sample.get("reports", {})
    found: dict[str, Values] = {}
    for replica, uuids in gpus.items():
        key = f"{run_id}/{replica}"
        if key not in processes and key not in reports:
            continue
        usage, report = processes.get(key, {}), reports.get(key, {})
        values: Values = {"cpu": usage.get("cpu"), "memory_mb": usage.get("memory_mb")}
        own = [measured[uuid] for uuid in uuids if uuid in measured]
        values["gpu"] = _mean([gpu.get("utilisation") for gpu in own])
        values["temperature_c"] = _mean([gpu.get("temperature_c") for gpu in own])
        values["gpu_memory_mb"] = _sum([gpu.get("memory_used_mb") for gpu in own])
        values["gpu_memory_total_mb"] = _sum([gpu.get("memory_mb") for gpu in own])
        values["power_w"] = _sum([gpu.get("power_w") for gpu in own])
        values |= reported_values(report, report)
        found[replica] = values
    return found


def reported_values(metrics: Mapping[str, Any], custom: object) -> Values:
    """What a replica reports, by the fields of a ring: None where nothing is known, NaN for what is not finite.

    `custom`: where the names of the script's own are.
    """
    values: Values = {name: _number(metrics[name]) if name in metrics else None for name in METRICS}
    return values | {OWN + name: _number(value) for name, value in own(custom).items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def slow_ones(compute_s: Mapping[str, float | None]) -> dict[str, float]:
    """Trainers that hold the others up, with how many times the median step they compute."""
    told = {name: seconds for name, seconds in compute_s.items() if seconds is not None and seconds > 0}
    if len(told) < ENOUGH:
        return {}
    median = statistics.median(told.values())
    return {name: seconds / median for name, seconds in told.items() if seconds >= SLOW * median}


def _told(values: Sequence[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    told = _told(values)
    return sum(told) / len(told) if told else None


def _sum(values: Sequence[float | None]) -> float | None:
    told = _told(values)
    return sum(told) if told else None
