"""Throughput of a run: the sum of the throughputs that its trainers measure.

A trainer's throughput is the number of samples per second of its ranks' finished steps, averaged over the last 10 s
(`torchyard_roles.training_metrics`). The window and the command line show no other throughput.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

TRAINER_ROLES = ("chief", "worker")
"""Roles whose replicas are trainers, the chief first."""


def is_trainer(replica: str) -> bool:
    """Returns whether a replica such as `worker-3` is a trainer."""
    return replica.rpartition("-")[0] in TRAINER_ROLES


def run_throughput(by_replica: Mapping[str, float | None]) -> float | None:
    """Returns a run's throughput in samples per second, the sum of the newest throughputs of its trainers.

    Returns None if no trainer reports a finite throughput.
    """
    rates = [rate for replica, rate in by_replica.items() if is_trainer(replica)]
    known = [rate for rate in rates if rate is not None and math.isfinite(rate)]
    return sum(known) if known else None
