"""What flows to a desktop without being asked for each time: a run's state, and the host's telemetry."""

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
"""Journal entries in one notification."""
LOOK_AGAIN_S = 5.0
"""Should a poke be lost, the journal is looked at this often."""
REST_AFTER_S = 30.0
TELEMETRY_BACKLOG = 256 * 1024
"""Bytes. A client this far behind skips samples: the latest wins."""


async def follow_state(connection: Connection, runs: Runs, run_id: str, seen: list[Any] | None) -> None:
    """Sends the journal from where the client left it, then each entry as it is written, until the run is over.

    Only the last notification has `alive` False, and no entries; without `run_ended` before it the keeper died.
    """
    reader = JournalReader(runs.folder(run_id))
    changed = runs.listen(run_id)
    first = True
    try:
        while not connection.closed:
            changed.clear()
            alive = await runs.keeper(run_id) is not None  # before reading: what it wrote last is then always seen
            entries = reader.read()
            if first:
                entries, first = after(entries, seen), False
            for start in range(0, len(entries), BATCH):
                batch = entries[start : start + BATCH]
                connection.notify("state", {"run_id": run_id, "entries": batch, "alive": True})
            if not alive:
                await runs.clear_up_after(run_id)
                connection.notify(
                    "state", {"run_id": run_id, "entries": [], "alive": False, "died": runs.death(run_id)}
                )
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK_AGAIN_S)
    finally:
        runs.unlisten(run_id, changed)


class Telemetry:
    """Samples the host while somebody watches, and not at all otherwise."""

    def __init__(self, runs: Runs, sampler: Sampler):
        self._runs = runs
        self._sampler = sampler
        self._watchers: dict[Connection, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._last: tuple[float, dict[str, Any]] | None = None

    def watch(self, connection: Connection, interval_s: float) -> None:
        """Sends `connection` a sample each `interval_s` seconds."""
        if connection not in self._watchers:
            connection.on_close.append(lambda: self.unwatch(connection))
        self._watchers[connection] = min(max(interval_s, 0.2), 60.0)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, connection: Connection) -> None:
        self._watchers.pop(connection, None)

    async def sample(self) -> dict[str, Any]:
        """One sample of the host, of the replicas here, and of what their scripts report."""
        pids: dict[str, list[int]] = {}
        reports: dict[str, dict[str, Any]] = {}
        for run_id in self._runs.ids():
            keeper = await self._runs.keeper(run_id)
            if keeper is None:
                continue
            try:
                metrics = await keeper.call("metrics", {}, timeout=1.0)
            except RpcError:
                continue  # it is busy or just leaving; the next sample will tell
            pids.update({f"{run_id}/{replica}": found for replica, found in metrics["pids"].items()})
            reports.update({f"{run_id}/{replica}": found for replica, found in metrics["metrics"].items()})
        self._rest_when_nobody_asks()
        sample = {**self._sampler.sample(pids), "reports": reports}
        self._last = asyncio.get_running_loop().time(), sample
        return sample

    async def recent(self, within_s: float) -> dict[str, Any]:
        """The sample that was just taken for somebody else, or one of now."""
        if self._last is not None and asyncio.get_running_loop().time() - self._last[0] <= within_s:
            return self._last[1]
        return await self.sample()

    def _rest_when_nobody_asks(self) -> None:
        """An open NVML keeps an administrator from replacing the driver: it is closed soon after the last sample."""
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(REST_AFTER_S, self._sampler.rest)

    async def _run(self) -> None:
        while self._watchers:
            sample = await self.sample()
            for connection in list(self._watchers):
                if connection.backlog < TELEMETRY_BACKLOG:
                    connection.notify("telemetry", sample)
            await asyncio.sleep(min(self._watchers.values(), default=1.0))
