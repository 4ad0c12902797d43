"""Access to the logs of ranks by byte offset. Clients request one part of a log at a time."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any, Callable

from torchyard_agent import log_index
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError

PIECE = 512 * 1024
"""Maximum number of bytes of a log in one answer."""
MOST_TIMES = 8192
"""Maximum number of entries of `times` in one answer."""
LOOK_EVERY_S = 0.1
LONGEST_WAIT_S = 20.0


def list_logs(run_dir: str) -> list[dict[str, Any]]:
    """Returns the name (see `paths.log_name`) and size in bytes of every log of the run on this host."""
    folder = os.path.join(run_dir, "logs")
    try:
        with os.scandir(folder) as entries:
            logs = [entry for entry in entries if entry.name.endswith(".log")]
            found = [{"name": entry.name, "size": entry.stat().st_size} for entry in logs]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda log: str(log["name"]))


async def read_log(run_dir: str, params: dict[str, Any], has_ended: Callable[[], bool]) -> dict[str, Any]:
    """Returns a part of one rank's log.

    `offset` is in bytes from the start, or from the end if it is negative. If no data is available yet, the function
    waits up to `wait_s`. In the result, `ended` is true if the part reaches the end of a log that will not grow any
    further. `times` are the times of the bytes in the part or, if `times_to_end` is true, of all bytes from the start
    of the part to the end of the log (see `log_times`).

    Args:
        has_ended: Returns whether the log will not grow any further.
    """
    name = paths.log_name(str(params["replica"]), int(params.get("local_rank", 0)))
    path = os.path.join(run_dir, "logs", os.path.basename(name))
    limit = min(int(params.get("limit", PIECE)), PIECE)
    deadline = asyncio.get_running_loop().time() + min(float(params.get("wait_s", 0)), LONGEST_WAIT_S)
    offset = int(params["offset"])
    while True:
        ended = has_ended()  # `ended` is determined before the size is read. Otherwise the last data could be missed.
        status = os.stat(path) if os.path.exists(path) else None
        size = status.st_size if status is not None else 0
        start = max(0, size + offset) if offset < 0 else offset
        if start > size:
            raise RpcError(f"{name} has {size} bytes, fewer than the offset {start}", "offset")
        if size > start or ended or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    data = b""
    if size > start:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(limit)
    end = start + len(data)
    times = []
    if status is not None:
        times = log_index.read_times(path, start, size if params.get("times_to_end") else end, status, MOST_TIMES)
    return {
        "data": base64.b64encode(data).decode(),
        "offset": start,
        "next": end,
        "size": size,
        "ended": ended and end >= size,
        "times": times,
    }
