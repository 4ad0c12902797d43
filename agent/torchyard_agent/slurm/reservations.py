"""Reservations that mirror bookings: whole nodes for one user, with the name of the booking."""

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
MAY_RESERVE = ("Operator", "Administrator")
"""Levels of accounting users who may create reservations."""


async def read() -> dict[str, Any]:
    """Returns the reservations of bookings by the booking's ID, the user, and whether the user may reserve nodes."""
    text = await commands.output(["scontrol", "-o", "show", "reservation"])
    found = {
        one["name"][len(PREFIX) :]: {name: one[name] for name in ("nodes", "start", "end", "users")}
        for one in calendar.parse_reservations(text)
        if one["name"].startswith(PREFIX)
    }
    return {"reservations": found, "user": getpass.getuser(), "may_reserve": await _may_reserve()}


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
    """Creates or changes the reservation of a booking. Raises RpcError with Slurm's message if it is refused."""
    name = _name(booking_id)
    if not nodes or not all(_NODE.fullmatch(node) for node in nodes):
        raise RpcError("a reservation needs the names of nodes", "params")
    before = (await read())["reservations"].get(booking_id)
    settings = [f"Nodes={','.join(nodes)}", f"EndTime={_local(end)}"]
    now = time.time()
    if before is None:
        settings += [f"StartTime={_local(start) if start > now else 'now'}", f"Users={getpass.getuser()}"]
        await commands.output(["scontrol", "create", "reservation", f"ReservationName={name}", *settings])
        return
    if before["start"] > now:  # The start of what has begun cannot be changed.
        settings.append(f"StartTime={_local(start) if start > now else 'now'}")
    await commands.output(["scontrol", "update", f"ReservationName={name}", *settings])


async def release(booking_id: str) -> None:
    """Ends the reservation of a booking: jobs in it run on, but no more are started in it."""
    name = _name(booking_id)
    code, _, said = await commands.outcome(["scontrol", "delete", f"ReservationName={name}"])
    if code and "in use" in said:
        await commands.output(["scontrol", "update", f"ReservationName={name}", "EndTime=now+1minutes"])
    elif code and "not valid" not in said and "does not exist" not in said:
        raise RpcError(f"scontrol: {said.strip().splitlines()[-1] if said.strip() else 'failed'}", "slurm_failed")


def _name(booking_id: str) -> str:
    if not _BOOKING_ID.fullmatch(booking_id):
        raise RpcError(f"{booking_id!r} is no ID of a booking", "params")
    return f"{PREFIX}{booking_id}"


def _local(moment: float) -> str:
    """Formats a time as `scontrol` reads it, in the time zone of the login node."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))
