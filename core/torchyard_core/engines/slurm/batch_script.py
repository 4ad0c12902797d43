"""The script that is submitted for a run: `#SBATCH` lines, and the command that starts the agent's batch program."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from torchyard_core.engines.slurm.planned_nodes import Component
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.topology.model import Topology

SUBMISSION, FOLDER = "@submission@", "@job@"
"""Placeholders for the command of the batch program and for the job's folder. The login node replaces them."""
RESERVATION = "torchyard_"
"""Prefix of the name of a reservation. The ID of the booking follows it."""
SAVE_MARGIN_S = 30.0
"""Time in seconds for saving and requeueing, in addition to the run's `stop_grace_s`.

Slurm may send its signal up to a minute earlier than that.
"""


def job_script(
    run_id: str,
    topology: Topology,
    cluster: Cluster,
    components: Sequence[Component],
    delay_s: float | None = None,
    group: str = "",
    *,
    is_only: bool = True,
    array: str = "",
) -> str:
    """Returns the script of a run's job, or of the jobs of a sweep.

    Args:
        run_id: The ID of the run, which is part of the job's name.
        topology: The topology of the run.
        cluster: The cluster of the fleet file.
        components: The request for nodes.
        delay_s: Time in seconds from the submission to the earliest start.
        group: The worker group that the job belongs to, or "" for the first or only job of the run.
        is_only: Whether the run has no other job. If it has others, the job ends when it loses a node.
        array: The elements of a sweep's array, such as `1-8%2`; "" for a job that is not an array.
    """
    grace = round(topology.program.stop_grace_s + SAVE_MARGIN_S)
    common = [f"--job-name=torchyard-{run_id}{f'-{group}' if group else ''}"]
    for option, value in (
        ("partition", cluster.partition),
        ("account", cluster.account),
        ("qos", cluster.qos),
        ("time", cluster.time_limit),
    ):
        if value is not None:
            common.append(f"--{option}={value}")
    first = [
        f"--output={FOLDER}/{'element-%a' if array else group or 'batch'}.log",
        "--open-mode=append",
        "--export=ALL",
        "--requeue",
        f"--signal=B:USR1@{grace}",
        f"--comment=torchyard:{run_id}",
    ]
    if array:
        first.append(f"--array={array}")
    if survives_node_loss(topology) and is_only:
        first.append("--no-kill")
    if delay_s is not None and not group:  # A group job needs no start time, because it depends on the first job.
        first.append(f"--begin=now+{max(0, math.ceil(delay_s))}")
    lines = ["#!/bin/sh"]
    for number, component in enumerate(components):
        if number:
            lines.append("#SBATCH hetjob")
        options = [*common, *(first if number == 0 else []), "--ntasks-per-node=1", *component.options]
        lines += [f"#SBATCH {shlex.quote(option) if ' ' in option else option}" for option in options]
    return "\n".join([*lines, f"exec {SUBMISSION}", ""])


def dependent(script: str) -> str:
    """Returns the script of a group job, with the dependency that `sbatch` gets as an option at the submission."""
    first, _, rest = script.partition("\n")
    return f"{first}\n#SBATCH --dependency=after:FIRST-JOB\n{rest}"


def in_reservation(script: str, reservation: str, time_limit: str | None, left_s: float) -> str:
    """Returns the script of a job that runs in a reservation. The job's time limit ends within the reservation.

    Args:
        script: The script of `job_script`.
        reservation: The name of the reservation.
        time_limit: The time limit of the cluster's jobs in the fleet file; None if there is none.
        left_s: Time in seconds from the start of the job to the end of the reservation.
    """
    limit = left_s if time_limit is None else min(left_s, limit_seconds(time_limit))
    lines = []
    for line in script.splitlines():
        if line.startswith("#SBATCH --time="):
            continue
        lines.append(line)
        if line.startswith("#SBATCH --job-name="):  # Each component of the job has one line of this kind.
            lines += [f"#SBATCH --reservation={reservation}", f"#SBATCH --time={max(1, int(limit // 60))}"]
    return "\n".join([*lines, ""])


def limit_seconds(text: str) -> float:
    """Parses a time limit of the fleet file, such as `90` (minutes), `90:00`, `04:00:00`, `2-00` or `2-00:00:00`."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], (*parts, 0)[1]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def survives_node_loss(topology: Topology) -> bool:
    """Returns whether the run may continue without a lost node. If so, Slurm must not end the job for this loss."""
    return any(pool.min_replicas is not None and pool.min_replicas < pool.replicas for pool in topology.pools)
