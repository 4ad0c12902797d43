"""The metrics reports that training scripts send to their keeper. They are JSON datagrams, and may be lost.

The environment variable `TORCHYARD_REPORT` contains the keeper's address, which is the name of an abstract Unix socket
with `@` in place of its leading NUL byte. A report that cannot be sent immediately is dropped, so training never waits
for the keeper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

REPORT_VARIABLE = "TORCHYARD_REPORT"
MAX_REPORT = 8192
"""Maximum size of a datagram in bytes. Longer datagrams are dropped."""

METRICS = (
    *("step", "loss", "throughput", "compute_s", "exchange_s", "wait_s", "staleness", "dropped", "skipped"),
    *("version", "clients", "bytes_s", "gradient_bytes", "noise_scale"),
)
"""The metrics in a trainer's report: optimizer steps; loss; samples per second of this rank; the times in seconds that
a step spent on computing, on exchanging and on waiting for other trainers; the staleness of a pull in versions; pushes
that the servers dropped; steps that were skipped because their gradients were not finite; the size of all gradients of
a step; the gradient noise scale in samples.

A server or reducer reports accepted rounds, connected trainers, and bytes sent and received per second. Its `wait_s` is
the time for which its newest round waited for the last trainer, and its `staleness` is that of this round. `dropped`
counts the rounds that it dropped, and `skipped` counts those that it skipped because no gradients were finite.
"""


MAX_CUSTOM_METRICS = 32
"""Maximum number of a replica's custom metrics that are kept."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def is_name(name: object) -> bool:
    """Returns whether `name` is valid for a metric: an ASCII identifier of at most 64 characters."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def custom_metrics(metrics: object) -> dict[str, float | None]:
    """Returns the first MAX_CUSTOM_METRICS entries that have a valid name outside METRICS, and a valid value.

    Valid values are numbers, and None, which stands for NaN and infinities.
    """
    found: dict[str, float | None] = {}
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name not in METRICS and is_name(name) and (value is None or is_number) and len(found) < MAX_CUSTOM_METRICS:
            found[name] = value
    return found


def valid_metrics(metrics: object) -> dict[str, Any]:
    """Returns the valid entries of received metrics: those named in METRICS, and custom metrics."""
    if not isinstance(metrics, Mapping):
        return {}
    return {**{name: metrics[name] for name in METRICS if name in metrics}, **custom_metrics(metrics)}


def not_finite(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the names of the metrics whose value is None, which stands for NaN and infinities."""
    return [name for name, value in metrics.items() if value is None]


def metrics_of_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics in a `report` event of a journal, except custom metrics and those with unknown values.

    None means that a value is not finite.
    """
    names = event.get("not_finite", ())
    return {name: event.get(name) for name in METRICS if event.get(name) is not None or name in names}


def custom_metrics_of_event(event: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the custom metrics in a `report` event of a journal."""
    custom = event.get("custom")
    return custom_metrics(
        {**(custom if isinstance(custom, Mapping) else {}), **dict.fromkeys(event.get("not_finite", ()))}
    )


def encode(replica: str, local_rank: int, metrics: dict[str, float]) -> bytes:
    return json.dumps({"replica": replica, "local_rank": local_rank, "metrics": metrics}).encode()


def decode(datagram: bytes) -> tuple[str, int, dict[str, float]] | None:
    """Returns (replica, local rank, metrics), or None if the datagram is invalid."""
    if len(datagram) > MAX_REPORT:
        return None
    try:
        message: Any = json.loads(datagram)
        numbers = {name: value for name, value in message["metrics"].items() if isinstance(value, (int, float))}
        metrics = {name: float(value) for name, value in valid_metrics(numbers).items()}
        return str(message["replica"]), int(message["local_rank"]), metrics
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
