"""What `hosts check` prints of one host."""

from __future__ import annotations

from torchyard_agent.protocol.attribution import cleaned
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


def policing_line(found: HostCheck) -> str:
    """`gpu-a: bookings are enforced (stop, dry run) on everybody's processes; …`; empty where the rules set nothing."""
    told = found.policing
    if told is None or told.level == "off":
        return ""
    how = f"{told.level}, dry run" if told.dry_run else told.level
    whose = "everybody's processes" if told.of_all else "the processes of its own user alone"
    now = f"{told.found} on GPUs that others have booked"
    if not told.is_fresh:
        now = "nothing is ended until a desktop hands it the calendar as it is now"
    reported = f" For admins to look into: {cleaned('; '.join(told.violations))}." if told.violations else ""
    return f"{found.name}: bookings are enforced ({how}) on {whose}; {now}.{reported}"
