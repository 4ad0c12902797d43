"""The calendar of a cluster: its nodes, its reservations, and the running jobs of all users with their end times."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_agent.slurm import commands, description
from torchyard_agent.slurm.job_queue import JobQueue


async def read(queue: JobQueue, partition: str | None = None) -> dict[str, Any]:
    """Returns the nodes of `partition` (by default, of the default partition), the reservations, the jobs and the user.

    Times are in seconds since 1970; the end of a job without a time limit is None.
    """
    jobs, partitions, nodes, reservations = await asyncio.gather(
        queue.everyone(),
        commands.output(["scontrol", "-o", "show", "partition"]),
        commands.output(["scontrol", "-o", "show", "node"]),
        commands.output(["scontrol", "-o", "show", "reservation"]),
    )
    found = [commands.pairs(line) for line in partitions.splitlines() if line.strip()]
    return {
        "as_of": queue.everyone_as_of,
        "user": getpass.getuser(),
        "nodes": _nodes(nodes, description.chosen_partition(found, partition)),
        "reservations": parse_reservations(reservations),
        "jobs": parse_jobs(jobs),
    }


def _nodes(text: str, partition: str | None) -> list[dict[str, Any]]:
    return [
        {"name": node["NodeName"], "gpus": commands.gres(node.get("Gres", "")), "cpus": int(node.get("CPUTot") or 1)}
        for node in map(commands.pairs, text.splitlines())
        if "NodeName" in node and (partition is None or partition in node.get("Partitions", "").split(","))
    ]


def parse_reservations(text: str) -> list[dict[str, Any]]:
    """Parses the output of `scontrol -o show reservation`.

    Other lines are ignored, such as the sentence that a cluster without reservations prints.
    """
    found = []
    for line in text.splitlines():
        reservation = commands.pairs(line)
        start, end = (_time(reservation, key) for key in ("StartTime", "EndTime"))
        if "ReservationName" in reservation and start is not None and end is not None:
            users = reservation.get("Users", "")
            found.append(
                {
                    "name": reservation["ReservationName"],
                    "start": start,
                    "end": end,
                    "nodes": commands.hostlist(reservation.get("Nodes", "")),
                    "users": [] if users in ("", "(null)") else users.split(","),
                    "state": reservation.get("State", ""),
                }
            )
    return found


def _time(reservation: Mapping[str, str], key: str) -> float | None:
    return commands.seconds(reservation.get(key, ""))


def parse_jobs(rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Returns the running jobs among rows with the columns of `JobQueue.everyone`."""
    found = []
    for job_id, name, state, start, nodes, user, end in rows:
        began = commands.seconds(start)
        if state in ("RUNNING", "COMPLETING", "SUSPENDED") and began is not None and nodes:
            jobs = {"id": job_id, "name": name, "user": user, "start": began, "end": commands.seconds(end)}
            found.append({**jobs, "nodes": commands.hostlist(nodes)})
    return found
