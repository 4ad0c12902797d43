"""What `hosts check` prints of one host."""

from __future__ import annotations

from torchyard_core.fleet.host_check import HostCheck, gpus_in_words

HEADINGS = ("HOST", "STATE", "AGENT", "CPUS", "MEMORY", "GPUS", "TORCH", "PYTHON")


def row(found: HostCheck) -> list[str]:
    """Cells for HEADINGS."""
    return [
        found.name,
        found.state,
        found.agent["version"] if found.agent else "-",
        "-" if found.cpus is None else str(found.cpus),
        "-" if found.memory_gb is None else f"{found.memory_gb:.0f} GB",
        gpus_in_words([gpu["name"] for gpu in found.gpus]) if found.agent else "-",
        found.torch or "-",
        found.python or "-",
    ]
