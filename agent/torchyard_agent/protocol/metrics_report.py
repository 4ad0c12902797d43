"""Metrics reports of training scripts to their keeper: JSON datagrams that may be lost, since only the latest matters.

The environment variable `TORCHYARD_REPORT` contains the keeper's address, which is the name of an abstract Unix socket
with `@` in place of its leading NUL byte. A report that cannot be sent immediately is dropped, so that training never
waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

REPORT_VARIABLE = "TORCHYARD_REPORT"
MAX_REPORT = 8192
"""The longest datagram in bytes. Longer ones are dropped."""

METRICS = (
    *("step", "loss", "throughput", "compute_s", "exchange_s", "wait_s", "staleness", "dropped", "skipped"),
    *("version", "clients", "bytes_s", "gradient_bytes", "noise_scale"),
)
"""Metrics of a report: optimizer steps; loss; samples per second of this rank; seconds of a step spent on computing,
exchanging and waiting for other trainers; the staleness of a pull in versions; pushes that the servers have dropped;
steps that were skipped because their gradients were not finite; the size of all gradients of a step; the gradient noise
scale in samples.

Of a server or reducer: rounds accepted; trainers connected; bytes per second sent and received. Its `wait_s` is the
time that its newest round waited for the last trainer, `staleness` that of this round; `dropped` and `skipped` are the
rounds that it has dropped, or skipped for lack of finite gradients."""


MAX_CUSTOM_METRICS = 32
"""Maximum number of custom metrics that are kept of a replica."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def is_name(name: object) -> bool:
    """Returns whether a script may report a number under this name, an ASCII identifier of at most 64 characters."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def custom_metrics(metrics: object) -> dict[str, float | None]:
    """Returns the first MAX_CUSTOM_METRICS entries whose name is valid and not in METRICS, and whose value is valid.

    Valid values are numbers, and None, which stands for NaN and infinities.
    """
    found: dict[str, float | None] = {}
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name not in METRICS and is_name(name) and (value is None or is_number) and len(found) < MAX_CUSTOM_METRICS:
            found[name] = value
    return found


def valid_metrics(metrics: object) -> dict[str, Any]:
    """Returns the valid part of received metrics: the METRICS among them, and the custom metrics."""
    if not isinstance(metrics, Mapping):
        return {}
    return {**{name: metrics[name] for name in METRICS if name in metrics}, **custom_metrics(metrics)}


def not_finite(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the names of the metrics whose value is None, which stands for NaN and infinities."""
    return [name for name, value in metrics.items() if value is None]


def metrics_of_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the METRICS of a `report` event, without unknown ones. None stands for values that are not finite."""
    names = event.get("not_finite", ())
    return {name: event.get(name) for name in METRICS if event.get(name) is not None or name in names}


def custom_metrics_of_event(event: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the custom metrics of a `report` event of a journal."""
    custom = event.get("custom")
    return custom_metrics(
        {**(custom if isinstance(custom, Mapping) else {}), **dict.fromkeys(event.get("not_finite", ()))}
    )


def encode(replica: str, local_rank: int, metrics: dict[str, float]) -> bytes:
    return json.dumps({"replica": replica, "local_rank": local_rank, "metrics": metrics}).encode()


def decode(datagram: bytes) -> tuple[str, int, dict[str, float]] | None:
    """Returns (replica, local rank, metrics), or None for an invalid datagram."""
    if len(datagram) > MAX_REPORT:
        return None
    try:
        message: Any = json.loads(datagram)
        numbers = {name: value for name, value in message["metrics"].items() if isinstance(value, (int, float))}
        metrics = {name: float(value) for name, value in valid_metrics(numbers).items()}
        return str(message["replica"]), int(message["local_rank"]), metrics
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
