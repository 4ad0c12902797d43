"""Sizes of models' gradients, as the newest runs have reported them."""

from __future__ import annotations

from torchyard_core.launch.runs.history import History

REPORTED = "gradient_bytes"
"""Name by which a training script reports the size: `cluster.report(gradient_bytes=…)`."""


def last_gradient_sizes(history: History) -> dict[str, float]:
    """Returns the size in bytes by name of the run, each from the newest run that has reported one."""
    found: dict[str, float] = {}
    for record in sorted(history.records(), key=lambda record: record.submitted):
        sizes = [metrics.get(REPORTED) for metrics in record.metrics.values() if isinstance(metrics, dict)]
        known = [float(size) for size in sizes if isinstance(size, (int, float)) and size > 0]
        if known:
            found[record.name] = max(known)
    return found
