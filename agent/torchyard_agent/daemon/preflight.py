"""Measurements of a host before a launch: limits, shared memory, InfiniBand, chosen GPUs, old processes and the clock.

The desktop evaluates the results. NVML is used only if GPUs were chosen, because its initialization is slow.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from torchyard_agent.journal import JournalReader
from torchyard_agent.keeper.processes import orphans
from torchyard_agent.protocol import journal_replay
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.unix_socket_rpc import Connection

if TYPE_CHECKING:
    from torchyard_agent.daemon.runs import Runs

SHARED_MEMORY = "/dev/shm"
INFINIBAND = "/sys/class/infiniband"
KEEPER_EXIT_S = 30.0
"""A keeper should exit within this many seconds after the end of its run."""

Params = dict[str, Any]


async def preflight(runs: Runs, connection: Connection, params: Params) -> Any:
    """Returns `received` and `answered` (seconds since 1970), `limits`, `shm`, `infiniband`, `gpus` and `leftovers`.

    The parameter `gpus` contains the UUIDs of the run's GPUs on this host.
    """
    received = time.time()
    loop = asyncio.get_running_loop()
    measuring = loop.run_in_executor(None, partial(_measure, [str(uuid) for uuid in params.get("gpus", [])]))
    leftovers = await find_leftovers(runs)
    measured = await measuring
    return {**measured, "leftovers": leftovers, "received": received, "answered": time.time()}


def _measure(uuids: list[str]) -> dict[str, Any]:
    return {
        "limits": {"nofile": _limits(resource.RLIMIT_NOFILE), "memlock": _limits(resource.RLIMIT_MEMLOCK)},
        "shm": _shared_memory(),
        "infiniband": os.path.isdir(INFINIBAND) and bool(os.listdir(INFINIBAND)),
        "gpus": _gpus(uuids) if uuids else [],
    }


def _limits(which: int) -> list[int | None]:
    """Returns the [soft, hard] values of a limit that ranks inherit. None means that there is no limit."""
    return [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)]


def _shared_memory() -> dict[str, int] | None:
    """Returns the `free` and `total` bytes of /dev/shm, or None if it is missing or not writable."""
    try:
        about = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    if not os.access(SHARED_MEMORY, os.W_OK):
        return None
    return {"free": about.f_bavail * about.f_frsize, "total": about.f_blocks * about.f_frsize}


def _gpus(uuids: list[str]) -> list[dict[str, Any]]:
    """Returns the health, XIDs and processes of each chosen GPU. XIDs are None if the kernel log is not readable."""
    # NVML and ctypes are imported here, because they are needed only if GPUs were chosen.
    from torchyard_agent.telemetry import xid_errors
    from torchyard_agent.telemetry.nvml import Nvml
    from torchyard_agent.telemetry.process_owners import Owners

    nvml = Nvml.open()
    if nvml is None:
        return []
    owners, xids, now = Owners(), xid_errors.xids(), time.monotonic()
    try:
        found = []
        for gpu in nvml.gpus:
            if gpu.uuid not in uuids:
                continue
            health = nvml.health(gpu)
            running = nvml.running(gpu)
            for process in running:
                owners.describe(process, now)
            logged = None if xids is None or health["bus_id"] is None else xids.get(health["bus_id"], [])
            about = {"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name, "memory_mb": gpu.memory_mb}
            found.append({**about, **health, "xids": logged, "processes": running})
        return found
    finally:
        nvml.close()


async def find_leftovers(runs: Runs) -> list[dict[str, Any]]:
    """Ends the processes that earlier runs left behind, if these runs have no keeper. Returns the processes by run.

    The result is [{`run_id`, `ended` (PIDs that were ended since the last call), `left` (PIDs that remain), `keeper`}].
    `keeper` is true if the run ended more than KEEPER_EXIT_S ago but its keeper is still alive.
    """
    loop = asyncio.get_running_loop()
    kept: list[str] = []
    orphaned: list[str] = []
    for run_id in runs.ids():
        (kept if await runs.keeper(run_id) is not None else orphaned).append(run_id)
    folders: dict[str, str] = {}
    for run_id in orphaned:
        with suppress(RpcError):  # Garbage collection may have removed the run since it was listed.
            folders[run_id] = runs.folder(run_id)
    in_use = await loop.run_in_executor(None, _in_use, list(folders.values())) if folders else set()
    for run_id, folder in folders.items():
        if folder in in_use and not runs.is_starting(run_id) and await runs.keeper(run_id) is None:
            await runs.end_processes(run_id, folder)
    left = [{"run_id": run_id, **ended, "keeper": False} for run_id, ended in runs.take_ended().items()]
    for run_id in kept:
        with suppress(RpcError):  # The run's folder may have been removed since the run was listed.
            if _is_long_over(runs.folder(run_id)):
                left.append({"run_id": run_id, "ended": [], "left": [], "keeper": True})
    return left


def _in_use(folders: list[str]) -> set[str]:
    """Returns the given folders that appear in the environment of any process of this user.

    Scans /proc once.
    """
    paths = {path + "/" for _, path in orphans.run_dirs()}
    return {folder for folder in folders if any(path.startswith(folder + "/") for path in paths)}


def _is_long_over(folder: str) -> bool:
    path = os.path.join(folder, "journal.jsonl")
    try:
        if time.time() - os.stat(path).st_mtime < KEEPER_EXIT_S:
            return False
    except OSError:
        return False
    return bool(journal_replay.fold("", JournalReader(folder).read())["ended"])
