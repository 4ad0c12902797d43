"""A scheduled run takes its GPUs at its start, and not before: others use them until then.

Where the one before is just leaving, it is waited for; how long, the policy says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Callable

from torchyard_agent.keeper.resources import Ground, in_a_thread
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry.process_usage import Owners

AGAIN_S = 1.0


class Taking:
    """Tries until it has them all, and tells so; and what is in the way meanwhile, once each."""

    def __init__(self, ground: Ground, tell: Callable[[dict[str, Any]], None]):
        self._ground = ground
        self._tell = tell
        self._task: asyncio.Task[None] | None = None

    def begin(self, only_if_idle: bool) -> None:
        """`only_if_idle`: not while any process is on them."""
        self.end()
        self._task = asyncio.get_running_loop().create_task(self._take(only_if_idle))

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _take(self, only_if_idle: bool) -> None:
        said = ""
        while True:
            problem = await self._try(only_if_idle)
            if not problem:
                self._tell({"say": "has_gpus"})
                return
            if problem != said:
                said = problem
                self._tell({"say": "gpus_held", "what": problem})
            await asyncio.sleep(AGAIN_S)

    async def _try(self, only_if_idle: bool) -> str:
        """What is in the way; empty where the GPUs are ours now."""
        try:
            await self._ground.retake_gpus()
        except RpcError as held:
            return str(held)
        users = await in_a_thread(users_of, self._ground.gpus) if only_if_idle else ""
        if users:
            self._ground.let_go_of_gpus()
        return users


def users_of(uuids: Collection[str]) -> str:
    """ "GPU 0 is used by python of ann (PID 12)"; empty where no process is on any of them, or none can be seen."""
    if not uuids:
        return ""
    from torchyard_agent.telemetry.nvml import Nvml  # ctypes is imported where there are GPUs to look at

    nvml = Nvml.open()
    if nvml is None:
        return ""
    owners = Owners()
    with contextlib.closing(nvml):
        for gpu in nvml.gpus:
            for process in nvml.running(gpu) if gpu.uuid in uuids else ():
                user, program = owners.of(process["pid"], 0.0)
                return f"GPU {gpu.index} is used by {program} of {user} (PID {process['pid']})"
    return ""
