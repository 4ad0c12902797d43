"""Subscriptions of desktops to a run's journal and the host's telemetry, sent as notifications."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from torchyard_agent.daemon.runs import Runs
from torchyard_agent.journal import JournalReader, after
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry.sampler import Sampler
from torchyard_agent.unix_socket_rpc import Connection

BATCH = 500
"""Maximum number of journal entries in one notification."""
NVML_IDLE_S = 30.0
"""NVML is shut down this many seconds after the last sample, because an initialized NVML blocks a driver update."""
TELEMETRY_BACKLOG = 256 * 1024
"""Number of unsent bytes above which a client receives no samples."""


async def follow_state(connection: Connection, runs: Runs, run_id: str, seen: list[Any] | None) -> None:
    """Sends the journal's entries after `seen`, and then each new entry until the keeper has exited.

    The last notification, in which `alive` is false, contains no entries. If the journal has no `run_ended` entry at
    that time, the keeper was killed or crashed.
    """
    reader = JournalReader(runs.folder(run_id))
    changed = runs.listen(run_id)
    first = True
    try:
        while not connection.closed:
            changed.clear()
            # The keeper is looked up before the journal is read. If the keeper has already exited, the journal that is
            # then read is complete.
            alive = await runs.is_open(run_id)
            entries = reader.read()
            if first:
                entries, first = after(entries, seen), False
            for start in range(0, len(entries), BATCH):
                batch = entries[start : start + BATCH]
                connection.notify("state", {"run_id": run_id, "entries": batch, "alive": True})
            if not alive:
                await runs.end_orphans(run_id)
                connection.notify(
                    "state", {"run_id": run_id, "entries": [], "alive": False, "died": runs.death(run_id)}
                )
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), runs.poll_s)
    finally:
        runs.unlisten(run_id, changed)


class Telemetry:
    """The telemetry of the host. Samples are taken only for subscribed desktops and on request."""

    def __init__(self, runs: Runs, sampler: Sampler):
        self._runs = runs
        self._sampler = sampler
        self._watchers: dict[Connection, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._last: tuple[float, dict[str, Any]] | None = None

    def watch(self, connection: Connection, interval_s: float) -> None:
        """Subscribes `connection` to a sample every `interval_s` seconds. The interval is limited to 0.2 to 60 s.

        Every subscriber receives every sample. The interval between samples is the shortest that a subscriber has
        requested.
        """
        if connection not in self._watchers:
            connection.on_close.append(lambda: self.unwatch(connection))
        self._watchers[connection] = min(max(interval_s, 0.2), 60.0)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, connection: Connection) -> None:
        self._watchers.pop(connection, None)

    async def sample(self) -> dict[str, Any]:
        """Takes one sample of the host and its replicas, including the metrics of their scripts."""
        pids: dict[str, list[int]] = {}
        reports: dict[str, dict[str, Any]] = {}
        for run_id in self._runs.ids():
            keeper = await self._runs.keeper(run_id)
            if keeper is None:
                continue
            try:
                metrics = await keeper.call("metrics", {}, timeout=1.0)
            except RpcError:
                continue  # The keeper is busy or ending. A busy keeper is called again for the next sample.
            pids.update({f"{run_id}/{replica}": found for replica, found in metrics["pids"].items()})
            reports.update({f"{run_id}/{replica}": found for replica, found in metrics["metrics"].items()})
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(NVML_IDLE_S, self._sampler.close_nvml)
        sample = {**self._sampler.sample(pids), "reports": reports}
        self._last = asyncio.get_running_loop().time(), sample
        return sample

    async def recent(self, within_s: float) -> dict[str, Any]:
        """Returns the last sample if it is at most `within_s` seconds old, otherwise a new one."""
        if self._last is not None and asyncio.get_running_loop().time() - self._last[0] <= within_s:
            return self._last[1]
        return await self.sample()

    async def _run(self) -> None:
        while self._watchers:
            sample = await self.sample()
            for connection in list(self._watchers):
                if connection.backlog < TELEMETRY_BACKLOG:
                    connection.notify("telemetry", sample)
            await asyncio.sleep(min(self._watchers.values(), default=1.0))
