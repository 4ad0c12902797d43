"""Locks a scheduled run's GPUs at its start time, when an earlier run may still be using them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Callable

from torchyard_agent.background_threads import in_a_thread
from torchyard_agent.keeper.decisions.events import GpusAcquired, GpusBusy
from torchyard_agent.keeper.link.messages import FromMember
from torchyard_agent.keeper.resources import RunResources
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry.process_owners import Owners

RETRY_S = 1.0


class GpuAcquisition:
    """A task that tries to lock all GPUs until it succeeds.

    The task sends GpusBusy when it finds another process or run that uses a GPU, and GpusAcquired when it succeeds.
    """

    def __init__(self, resources: RunResources, host: str, send: Callable[[FromMember], None]):
        self._resources = resources
        self._host = host
        self._send = send
        self._task: asyncio.Task[None] | None = None

    def begin(self, only_if_idle: bool) -> None:
        """Starts the task. If `only_if_idle` is true, the GPUs are locked only if no process uses them."""
        self.end()
        self._task = asyncio.get_running_loop().create_task(self._acquire(only_if_idle))

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _acquire(self, only_if_idle: bool) -> None:
        reported = ""
        while True:
            problem = await self._try(only_if_idle)
            if not problem:
                self._send(GpusAcquired(self._host))
                return
            if problem != reported:
                reported = problem
                self._send(GpusBusy(self._host, problem))
            await asyncio.sleep(RETRY_S)

    async def _try(self, only_if_idle: bool) -> str:
        """Tries once to lock the GPUs.

        Returns "" if the GPUs are now locked, otherwise a description of the process or run that uses one of them.
        """
        try:
            await self._resources.lock_gpus()
        except RpcError as held:
            return str(held)
        users = await in_a_thread(users_of, self._resources.gpus) if only_if_idle else ""
        if users:
            self._resources.release_gpus()
        return users


def users_of(uuids: Collection[str]) -> str:
    """Returns a description of the first given GPU that is in use: "GPU 0 is used by python of ann (PID 12)".

    Returns "" if no process uses the GPUs or NVML is not available.
    """
    if not uuids:
        return ""
    # NVML is imported here, because only runs with GPUs need it.
    from torchyard_agent.telemetry.nvml import Nvml

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
