"""Determines why Slurm interrupted a job, as Slurm's name for the cause, and how much time is left for saving.

`scontrol show job` does not distinguish a preemption without GraceTime from a requeue. Two other sources do:
slurmstepd, which sends the signals, writes the cause into the output of the batch program, and accounting records it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import commands, job_queue
from torchyard_agent.slurm.job_queue import Job

NAMES = ("PREEMPTED", "REQUEUED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY")
LOG = "batch.log"
"""The output of the batch program, in the job's folder."""
EXPLAIN_WITHIN_S = 5.0
"""Timeout in seconds of the query to accounting for the cause of an interruption. It may delay the run's next start."""
RESERVE_S = 2.0
"""Time in seconds before SIGKILL that is reserved for ending the keepers and requeueing the job.

At most a quarter of the time before SIGKILL is reserved.
"""
_TAIL = 1 << 16
_WRITTEN = {"PREEMPTION": "PREEMPTED", "JOB REQUEUE": "REQUEUED", "NODE FAILURE": "NODE_FAIL", "TIME LIMIT": "TIMEOUT"}
_LINE = re.compile(rf"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+ DUE TO ({'|'.join(_WRITTEN)})")


def log_size(folder: str) -> int:
    """Returns the size in bytes of the batch program's output. `of_ended` needs the size at the job's start."""
    try:
        return os.path.getsize(os.path.join(folder, LOG))
    except OSError:
        return 0


def of_ended(job: Job | None, restarts: int, folder: str, log_start: int, default: str) -> str:
    """Returns Slurm's name for the cause of the interruption of a job's current start.

    Args:
        job: The job as shown by `scontrol`.
        restarts: The number of restarts before the current start.
        folder: The job's folder.
        log_start: The size of the batch program's output when it started.
        default: The name to return if neither Slurm nor the output shows a cause.
    """
    shown = job.interruption(restarts) if job is not None else ""
    if shown not in ("", "REQUEUED"):
        return shown
    return _written(folder, log_start) or shown or default


async def kill_wait() -> float | None:
    """Returns the cluster's KillWait in seconds, or None if it is unknown."""
    try:
        text = await commands.output(["scontrol", "show", "config"])
    except RpcError:
        return None
    return commands.duration(commands.settings(text).get("KillWait", ""))


def time_left(job: Job | None, kill_wait_s: float | None, now: float) -> float | None:
    """Returns the time in seconds between Slurm's signal and its SIGKILL, or None if it is unknown.

    A job that is still running when it is signalled is killed at its end time, which is the end of its time limit or of
    the partition's GraceTime. A job that Slurm is already ending (requeue, preemption without GraceTime, `scancel`) is
    killed after KillWait.

    Args:
        job: The job as shown by `scontrol`, or None if it is unknown.
        kill_wait_s: The cluster's KillWait, or None if it is unknown or does not apply.
        now: The time of the signal in seconds since 1970.
    """
    # Slurm may still be sending the signal to other nodes of a running job (SIGNALING).
    if job is not None and job.state in ("RUNNING", "SIGNALING") and job.end is not None and job.end > now:
        return job.end - now
    return kill_wait_s


def grace_of(left_s: float) -> float:
    """Returns the longest time in seconds for which ranks may save if Slurm kills the job in `left_s`."""
    return max(0.0, left_s - min(RESERVE_S, left_s / 4))


async def of_killed(job_id: str, folder: str, started: dict[str, Any]) -> str:
    """Returns Slurm's name for the cause of a job's interruption, if the killed batch program did not journal it.

    Args:
        job_id: The ID of the job.
        folder: The job's folder.
        started: The contents of `started.json` of the interrupted start.
    """
    states = await job_queue.accounted_states(job_id, EXPLAIN_WITHIN_S)
    names = [state for state in states if state in NAMES]
    return (names[-1] if names else "") or _written(folder, int(started.get("log_start", 0))) or "REQUEUED"


def _written(folder: str, log_start: int) -> str:
    """Returns the cause that slurmstepd wrote to the batch program's output after byte `log_start`, or "" if none."""
    try:
        with open(os.path.join(folder, LOG), "rb") as log:
            log.seek(max(log_start, log.seek(0, os.SEEK_END) - _TAIL))
            found = _LINE.findall(log.read().decode(errors="replace"))
    except OSError:
        return ""
    return _WRITTEN[found[0]] if found else ""
