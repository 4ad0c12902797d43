"""Why Slurm ended a start of a job that may start again, by Slurm's names.

`scontrol show job` does not tell a preemption without GraceTime from a requeue. slurmstepd, which sends the signals,
writes the cause into the output of the batch program, and accounting records it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from torchyard_agent.slurm import job_queue
from torchyard_agent.slurm.job_queue import Job

NAMES = ("PREEMPTED", "REQUEUED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY")
LOG = "batch.log"
"""The output of the batch program, in the job's folder."""
EXPLAIN_WITHIN_S = 5.0
"""Time in seconds that accounting may take to explain an interruption. The run's next start waits for it."""
_TAIL = 1 << 16
_WRITTEN = {"PREEMPTION": "PREEMPTED", "JOB REQUEUE": "REQUEUED", "NODE FAILURE": "NODE_FAIL", "TIME LIMIT": "TIMEOUT"}
_LINE = re.compile(rf"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+ DUE TO ({'|'.join(_WRITTEN)})")


def log_size(folder: str) -> int:
    """Returns the size of the batch program's output in bytes, which `of_ended` needs of the time of a start."""
    try:
        return os.path.getsize(os.path.join(folder, LOG))
    except OSError:
        return 0


def of_ended(job: Job | None, restarts: int, folder: str, log_start: int, default: str) -> str:
    """Returns what ended the current start of a job, after this number of restarts.

    Args:
        job: The job as shown by `scontrol`.
        restarts: The number of restarts before the current start.
        folder: The job's folder.
        log_start: The size of the batch program's output when it started.
        default: The name if Slurm has not done anything to the job.
    """
    shown = job.interruption(restarts) if job is not None else ""
    if shown not in ("", "REQUEUED"):
        return shown
    return _written(folder, log_start) or shown or default


async def of_killed(job_id: str, folder: str, started: dict[str, Any]) -> str:
    """Returns what ended a start of a job whose batch program was killed before it could journal the cause.

    Args:
        job_id: The ID of the job.
        folder: The job's folder.
        started: The contents of `started.json` of that start.
    """
    states = await job_queue.accounted_states(job_id, EXPLAIN_WITHIN_S)
    names = [state for state in states if state in NAMES]
    return (names[-1] if names else "") or _written(folder, int(started.get("log_start", 0))) or "REQUEUED"


def _written(folder: str, log_start: int) -> str:
    """Returns the cause that slurmstepd has written since the output had this size, or ""."""
    try:
        with open(os.path.join(folder, LOG), "rb") as log:
            log.seek(max(log_start, log.seek(0, os.SEEK_END) - _TAIL))
            found = _LINE.findall(log.read().decode(errors="replace"))
    except OSError:
        return ""
    return _WRITTEN[found[0]] if found else ""
