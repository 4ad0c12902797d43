"""What a training script reports to its keeper: one JSON datagram, lossy, latest wins.

The keeper's address is in the environment variable `TORCHYARD_REPORT`, an abstract Unix socket's name with `@`
for its leading NUL byte. A report that cannot be sent at once is dropped: training never waits for it.
"""

from __future__ import annotations

import json
from typing import Any

REPORT_VARIABLE = "TORCHYARD_REPORT"
MAX_REPORT = 8192
"""Bytes; a longer datagram is dropped."""

METRICS = (
    *("step", "loss", "throughput", "compute_s", "exchange_s", "wait_s", "staleness", "dropped", "skipped"),
    *("version", "clients", "bytes_s"),
)
"""Numbers a report may hold: optimizer steps done; loss; samples a second of this rank; seconds a step spends
computing, exchanging and waiting for others; versions a pull is behind; pushes that the servers have dropped so far;
steps skipped so far because their gradients were not finite.

Of a server or reducer: pushes accepted so far; trainers connected; bytes a second sent and received. Its `wait_s` are
the seconds that its newest round waited for the last trainer, its `staleness` the versions that this was behind, and
`dropped` and `skipped` the rounds that it has dropped, or left out for want of a finite gradient."""


def encode(replica: str, local_rank: int, metrics: dict[str, float]) -> bytes:
    return json.dumps({"replica": replica, "local_rank": local_rank, "metrics": metrics}).encode()


def decode(datagram: bytes) -> tuple[str, int, dict[str, float]] | None:
    """(replica, local rank, metrics), or None for a datagram that is no report."""
    if len(datagram) > MAX_REPORT:
        return None
    try:
        message: Any = json.loads(datagram)
        metrics = {
            name: float(value)
            for name, value in message["metrics"].items()
            if name in METRICS and isinstance(value, (int, float))
        }
        return str(message["replica"]), int(message["local_rank"]), metrics
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
