"""Slurm reservations that mirror bookings. Each reserves whole nodes for one user, and is named after its booking."""

from __future__ import annotations

import getpass
import os
import re
import time
from typing import Any

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import calendar, commands

PREFIX = "torchyard_"
"""Prefix of the names of reservations, followed by the ID of the booking."""
_BOOKING_ID = re.compile(r"[\w-]{1,64}")
_NODE = re.compile(r"[\w.-]{1,64}")
ENDS_SOON_S = 300.0
"""A job is not requeued into a reservation that ends within this time in seconds."""
MAY_RESERVE = ("Operator", "Administrator")
"""Values of AdminLevel in Slurm's accounting that allow a user to create reservations."""


async def read() -> dict[str, Any]:
    """Returns the reservations of bookings by the booking's ID, the user, and whether the user may reserve nodes.

    All other reservations are in `others`.
    """
    text = await commands.output(["scontrol", "-o", "show", "reservation"])
    every = calendar.parse_reservations(text)
    found = {
        one["name"][len(PREFIX) :]: {name: one[name] for name in ("nodes", "start", "end", "users")}
        for one in every
        if one["name"].startswith(PREFIX)
    }
    others = [one for one in every if not one["name"].startswith(PREFIX)]
    user, may_reserve = getpass.getuser(), await _may_reserve()
    return {"reservations": found, "others": others, "user": user, "may_reserve": may_reserve}


async def _may_reserve() -> bool:
    """Returns whether this user is root, SlurmUser or an operator."""
    if os.getuid() == 0:
        return True
    user = getpass.getuser()
    config = commands.settings(await commands.output(["scontrol", "show", "config"]))
    if config.get("SlurmUser", "").partition("(")[0] == user:
        return True
    try:
        code, text, _ = await commands.outcome(["sacctmgr", "-n", "-P", "show", "user", user, "format=AdminLevel"])
    except RpcError:
        return False
    return code == 0 and any(line.strip() in MAY_RESERVE for line in text.splitlines())


async def reserve(booking_id: str, nodes: list[str], start: float, end: float) -> None:
    """Creates or changes the reservation of a booking. Raises RpcError with Slurm's message if Slurm refuses."""
    name = _name(booking_id)
    if not nodes or not all(_NODE.fullmatch(node) for node in nodes):
        raise RpcError("a reservation needs the names of nodes", "params")
    before = (await read())["reservations"].get(booking_id)
    settings = [f"Nodes={','.join(nodes)}", f"EndTime={_local(end)}"]
    now = time.time()
    if before is None:
        settings += [f"StartTime={_local(start) if start > now else 'now'}", f"Users={getpass.getuser()}"]
        create = ["scontrol", "create", "reservation", f"ReservationName={name}", *settings]
        try:
            await commands.output(create)
        except RpcError as error:
            if "busy" not in error.message or not await _runs_only_own_jobs(nodes):
                raise
            await commands.output([*create, "Flags=IGNORE_JOBS"])
        return
    if before["start"] > now:  # Slurm cannot change the start of a reservation that has begun.
        settings.append(f"StartTime={_local(start) if start > now else 'now'}")
    await commands.output(["scontrol", "update", f"ReservationName={name}", *settings])


async def _runs_only_own_jobs(nodes: list[str]) -> bool:
    """Returns whether the nodes run only jobs of this user, who may then reserve the nodes in spite of the jobs."""
    users = (await commands.output(["squeue", "-h", "-o", "%u", "-w", ",".join(nodes)])).split()
    return bool(users) and set(users) == {getpass.getuser()}


async def release(booking_id: str) -> None:
    """Ends the reservation of a booking. Jobs in the reservation continue outside it.

    Raises RpcError if Slurm keeps the reservation, for example because it does not let running jobs leave it.
    """
    name = _name(booking_id)
    code, _, said = await commands.outcome(["scontrol", "delete", f"ReservationName={name}"])
    if code and "in use" in said:  # Slurm does not delete a reservation that contains jobs.
        await _take_jobs_out(name)
        code, _, said = await commands.outcome(["scontrol", "delete", f"ReservationName={name}"])
    if code and "in use" in said:
        raise RpcError("jobs run in the reservation, and Slurm does not end it before them", "slurm_failed")
    if code and "not valid" not in said and "does not exist" not in said:
        raise RpcError(f"scontrol: {said.strip().splitlines()[-1] if said.strip() else 'failed'}", "slurm_failed")


async def _take_jobs_out(name: str) -> None:
    """Removes the jobs from a reservation without ending them, as far as Slurm permits."""
    jobs = (await commands.output(["squeue", "-h", "-o", "%A", "-R", name])).split()
    for job in dict.fromkeys(jobs):
        await _take_out(job)


async def _take_out(job_id: str) -> None:
    await commands.outcome(["scontrol", "update", f"JobId={job_id}", "ReservationName="])


async def leave_if_ending(job_id: str) -> None:
    """Removes the job of this program from its reservation if the reservation ends soon.

    Called before the job is requeued: a job whose reservation has ended waits for ever.
    """
    name = os.environ.get("SLURM_JOB_RESERVATION", "")
    if not name:
        return
    try:
        found = calendar.parse_reservations(await commands.output(["scontrol", "-o", "show", "reservation", name]))
    except RpcError:  # Slurm deletes a reservation when it ends.
        found = []
    if all(one["end"] < time.time() + ENDS_SOON_S for one in found):
        await _take_out(job_id)


def _name(booking_id: str) -> str:
    if not _BOOKING_ID.fullmatch(booking_id):
        raise RpcError(f"{booking_id!r} is no ID of a booking", "params")
    return f"{PREFIX}{booking_id}"


def _local(moment: float) -> str:
    """Formats a time as `scontrol` reads it, in the time zone of the login node."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))
