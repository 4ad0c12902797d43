"""Sizes of models' gradients, as reported by the newest runs."""

from __future__ import annotations

from torchyard_core.launch.runs.history import History

REPORTED = "gradient_bytes"
"""Name by which a training script reports the size: `cluster.report(gradient_bytes=…)`."""


def last_gradient_sizes(history: History) -> dict[str, float]:
    """Returns the size in bytes by run name, as reported by the newest run of that name."""
    found: dict[str, float] = {}
    for record in sorted(history.records(), key=lambda record: record.submitted):
        sizes = [metrics.get(REPORTED) for metrics in record.metrics.values() if isinstance(metrics, dict)]
        known = [float(size) for size in sizes if isinstance(size, (int, float)) and size > 0]
        if known:
            found[record.name] = max(known)
    return found
