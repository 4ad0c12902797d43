"""Metrics of replicas: the newest sample of each host, values per replica, and time series for plots.

A time series is a sliding window in contiguous arrays, not a ring buffer. Samples are moved only when the arrays are
full. Once a window has reached its capacity, this happens once every `capacity / 4` calls to `append`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_agent.protocol.metrics_report import MAX_CUSTOM_METRICS, METRICS, custom_metrics

FIELDS = (
    "cpu", "memory_mb", "gpu", "gpu_memory_mb", "gpu_memory_total_mb", "power_w", "temperature_c", "step", "loss",
    "throughput", "compute_s", "exchange_s", "wait_s", "staleness", "dropped", "skipped", "version", "clients",
    "bytes_s", "noise_scale",
)  # fmt: skip
"""Fields of a time series. `gpu` is the mean utilization of the replica's GPUs, and `cpu` is in percent of one CPU."""

OWN = "own."
"""Prefix of the fields whose names are chosen by the training script, such as `own.accuracy`.

The name after the prefix may also be one of `FIELDS`.
"""

CAPACITY = 3600
"""Maximum number of samples per replica: an hour at one sample per second."""
BUDGET = 720_000
"""Total number of samples kept for a run's replicas. A sample takes 88 bytes, excluding fields named by the script."""
INITIAL_CAPACITY = 64


def capacity_for(replicas: int) -> int:
    """Returns the number of samples to keep for each of `replicas` replicas, at least 300 and at most `CAPACITY`."""
    return max(300, min(CAPACITY, BUDGET // max(1, replicas)))


class TimeSeries:
    """Samples in chronological order. NaN stands for a value that is unknown or not finite; a plot shows it as a gap.

    Fields with names chosen by the training script are added at their first occurrence, up to 32 of them.
    """

    def __init__(self, capacity: int = CAPACITY, fields: Sequence[str] = FIELDS):
        self.fields = tuple(fields)
        self._row = {field: row for row, field in enumerate(self.fields)}
        self._capacity = capacity
        self._times: NDArray[np.float64] = np.empty(min(INITIAL_CAPACITY, capacity), np.float64)
        self._values: NDArray[np.float32] = np.empty((len(self.fields), len(self._times)), np.float32)
        self._begin = self._end = 0
        self._last: dict[str, float] = {}

    def __len__(self) -> int:
        return self._end - self._begin

    def append(self, time: float, values: Mapping[str, float | None]) -> bool:
        """Appends values measured at `time` (seconds since 1970).

        Returns False and ignores the values if they are not newer than the last sample, because the same samples arrive
        again when a journal is replayed after a lost connection.
        """
        if len(self) and time <= self._times[self._end - 1]:
            return False
        if self._end == len(self._times):
            self._make_room()
        self._times[self._end] = time
        for field in values:
            if field.startswith(OWN) and field not in self._row and len(self.own) < MAX_CUSTOM_METRICS:
                self._add(field)
        for field, row in self._row.items():
            value = values.get(field)
            self._values[row, self._end] = math.nan if value is None else value
            if value is not None:
                self._last[field] = value
        self._end += 1
        self._begin = max(self._begin, self._end - self._capacity)
        return True

    def times(self) -> NDArray[np.float64]:
        """Returns the times in seconds since 1970. The result is a view that is valid until the next `append`."""
        return self._times[self._begin : self._end]

    def values(self, field: str) -> NDArray[np.float32]:
        """Returns the values of a field, parallel to `times`.

        The result is a view that is valid until the next `append`. If the script has never reported the field, all
        values are NaN.
        """
        if field.startswith(OWN) and field not in self._row:
            return np.full(len(self), math.nan, np.float32)
        return self._values[self._row[field], self._begin : self._end]

    def tail(self, field: str, count: int) -> NDArray[np.float32]:
        """Returns the newest values of a field, at most `count`."""
        return self._values[self._row[field], max(self._begin, self._end - count) : self._end]

    @property
    def own(self) -> list[str]:
        """Names of fields reported by the training script, in the order of their first samples."""
        return [field[len(OWN) :] for field in self._row if field.startswith(OWN)]

    def last(self, field: str) -> float | None:
        """Returns the newest known value of a field, regardless of its age, or None if there is none.

        NaN means that the value was not finite.
        """
        return self._last.get(field)

    @property
    def last_time(self) -> float | None:
        """The time of the newest sample, or None if there are no samples."""
        return float(self._times[self._end - 1]) if len(self) else None

    def _add(self, field: str) -> None:
        self._row[field] = len(self._row)
        self.fields = (*self.fields, field)
        self._values = np.vstack([self._values, np.full((1, self._values.shape[1]), math.nan, np.float32)])

    def _make_room(self) -> None:
        """Makes room after the last sample.

        The arrays are enlarged, up to 1.25 times the capacity. If they already have that size, the samples in the
        window are moved to the start of the arrays instead.
        """
        kept = len(self)
        room = min(max(2 * kept, INITIAL_CAPACITY), self._capacity + max(1, self._capacity // 4))
        if room > len(self._times):
            times = np.empty(room, np.float64)
            values = np.empty((len(self.fields), room), np.float32)
        else:
            times, values = self._times, self._values
        times[:kept] = self._times[self._begin : self._end]
        values[:, :kept] = self._values[:, self._begin : self._end]
        self._times, self._values = times, values
        self._begin, self._end = 0, kept


Sample = Mapping[str, Any]
"""A host's answer to `telemetry.sample`. The agent's `Sampler.sample` defines the names and units of its values."""
Values = dict[str, float | None]


class LatestSamples:
    """The newest sample of each host, passed from one thread to another. A slow consumer misses older samples."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: dict[str, Sample] = {}

    def put(self, host: str, sample: Sample) -> bool:
        """Stores a sample. Returns True if no sample was waiting before, so that the consumer must be notified."""
        with self._lock:
            first = not self._by_host
            self._by_host[host] = sample
            return first

    def take(self) -> dict[str, Sample]:
        """Returns the waiting samples by host, and removes them."""
        with self._lock:
            taken, self._by_host = self._by_host, {}
            return taken


def replica_values(sample: Sample, run_id: str, gpus: Mapping[str, Sequence[str]]) -> dict[str, Values]:
    """Extracts the values of a run's replicas from a host's sample, by replica name and by the names in `FIELDS`.

    For a replica with several GPUs, utilization and temperature are means, and GPU memory and power are sums.

    Args:
        sample: The host's telemetry sample.
        gpus: The UUIDs of each replica's GPUs.
    """
    measured = {gpu.get("uuid"): gpu for gpu in sample.get("gpus", [])}
    processes, reports = sample.get("replicas", {}), sample.get("reports", {})
    found: dict[str, Values] = {}
    for replica, uuids in gpus.items():
        key = f"{run_id}/{replica}"
        if key not in processes and key not in reports:
            continue
        usage, report = processes.get(key, {}), reports.get(key, {})
        own = [measured[uuid] for uuid in uuids if uuid in measured]
        if usage.get("processes") == 0:  # The replica is not running: 0 MB must not replace its last measured memory.
            usage, own = {}, []
        values: Values = {"cpu": usage.get("cpu"), "memory_mb": usage.get("memory_mb")}
        values["gpu"] = _mean([gpu.get("utilisation") for gpu in own])
        values["temperature_c"] = _mean([gpu.get("temperature_c") for gpu in own])
        values["gpu_memory_mb"] = _sum([gpu.get("memory_used_mb") for gpu in own])
        values["gpu_memory_total_mb"] = _sum([gpu.get("memory_mb") for gpu in own])
        values["power_w"] = _sum([gpu.get("power_w") for gpu in own])
        values |= reported_values(report, report)
        found[replica] = values
    return found


def reported_values(metrics: Mapping[str, Any], custom: object) -> Values:
    """Returns the metrics reported by a replica. None stands for an unknown value, NaN for one that is not finite.

    Args:
        metrics: Metrics with the names in `FIELDS`.
        custom: Metrics with names chosen by the training script.
    """
    values: Values = {name: _number(metrics[name]) if name in metrics else None for name in METRICS}
    return values | {OWN + name: _number(value) for name, value in custom_metrics(custom).items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _known(values: Sequence[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    reported = _known(values)
    return sum(reported) / len(reported) if reported else None


def _sum(values: Sequence[float | None]) -> float | None:
    reported = _known(values)
    return sum(reported) if reported else None
