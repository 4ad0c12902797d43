"""The text of a warning to the owner of a process that uses a GPU without a booking."""

from __future__ import annotations

from torchyard_agent.enforcement.classification import ROOT, UNKNOWN
from torchyard_agent.enforcement.escalation import Act
from torchyard_agent.protocol.timestamps import rfc3339


def warning(act: Act, host: str) -> str:
    """Returns a warning for the owner of a process. If the process will be ended, the warning contains the time."""
    finding = act.case.finding
    which = f"{finding.use.program} (PID {finding.use.pid}) uses {_gpus(len(act.case.gpus))} of {host}"
    if finding.booking is not None:
        booked = f"booked by {finding.booking.owner} until {rfc3339(finding.booking.end)}"
        ends = f" It will be ended at {rfc3339(act.stop_at)}." if act.stop_at is not None else ""
        more = {
            ROOT: " It runs as root, and is reported to the admins.",
            UNKNOWN: f" The calendar names no person for {finding.use.user} on {host}; this is reported to the admins.",
        }.get(finding.verdict, "")
        return f"Torchyard: your process {which}, {booked}.{ends}{more}"
    return f"Torchyard: your process {which} without a booking. Please book: `torchyard book`."


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"
