"""The sizes of the gradients of models, as reported by their newest runs."""

from __future__ import annotations

from torchyard_core.launch.runs.history import History

REPORTED = "gradient_bytes"
"""Name of the metric. `distribute()` reports it; a script that does not call `distribute()` may report it itself."""


def last_gradient_sizes(history: History) -> dict[str, float]:
    """Returns the gradient size in bytes by run name, from the newest run of each name that reported a size."""
    found: dict[str, float] = {}
    for record in sorted(history.records(), key=lambda record: record.submitted):
        sizes = [metrics.get(REPORTED) for metrics in record.metrics.values() if isinstance(metrics, dict)]
        known = [float(size) for size in sizes if isinstance(size, (int, float)) and size > 0]
        if known:
            found[record.name] = max(known)
    return found
