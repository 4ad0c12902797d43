"""Copies checkpoints between the hosts of a run, as decided by `decisions.replication_policy`.

The primary scans the chief's checkpoint folder, and orders members over the gang link to copy a checkpoint. For the
transfer, a member opens another connection to the port of the gang link. A failed transfer is journaled and logged, and
the run continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from typing import Callable

from torchyard_agent.keeper.checkpoints import checkpoint_folders, file_transfer
from torchyard_agent.keeper.checkpoints.file_transfer import TransferError
from torchyard_agent.keeper.decisions import replication_policy
from torchyard_agent.keeper.link import messages
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream

SCAN_EVERY_S = 1.0
"""Interval in seconds at which the chief's checkpoint folder is scanned for new checkpoints."""
BRING_WITHIN_S = 300.0
"""Maximum delay in seconds of the chief's start while a checkpoint is copied from another host."""
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Delays in seconds before the attempts to resume an interrupted transfer."""

log = logging.getLogger(__name__)

OnResult = Callable[[str, str, str], None]
"""A function that is called with (host, checkpoint, problem). The problem is "" if the checkpoint was copied."""
Dial = Callable[[Message], Awaitable[tuple[Stream, Message]]]
"""A function that connects to the primary with an introduction. Raises one of NETWORK_ERRORS if this fails."""


class CheckpointSender:
    """The primary's side of checkpoint copies.

    Args:
        order: Sends a message to the keeper of a host.
        on_result: Called with the result of each copy.
        on_saved: Called with the name of each saved checkpoint. If a scan finds several, it is called only for the
            newest.
    """

    def __init__(
        self,
        folder: str,
        run_id: str,
        replication: replication_policy.Replication,
        order: Callable[[str, messages.FromPrimary], None],
        on_result: OnResult,
        on_saved: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._folder = folder
        self._run_id = run_id
        self._replication = replication
        self._order = order
        self._on_result = on_result
        self._on_saved = on_saved
        self._uplink = asyncio.Lock()
        """Held during a transfer from the chief's host, so that transfers run one at a time."""
        self._awaited: replication_policy.Transfer | None = None
        """The transfer to the chief's host that is under way, or None."""
        self._arrived = asyncio.Event()
        """Set when the transfer to the chief's host has succeeded or was given up."""
        self._reported = checkpoint_folders.newest(folder)
        """The newest checkpoint that was linked from an older run, reported as saved, or copied to this host."""
        self.scan()

    def scan(self) -> None:
        """Scans the chief's checkpoint folder for a new checkpoint, and orders copies of it."""
        name = checkpoint_folders.newest(self._folder, self._run_id)
        if name != self._replication.newest:
            self._take(replication_policy.on_saved(self._replication, name))
        saved = checkpoint_folders.name_in(name)
        if saved is not None and saved > self._reported:
            self._reported = saved
            self._on_saved(saved)

    async def watch(self) -> None:
        """Scans the chief's checkpoint folder every SCAN_EVERY_S."""
        while True:
            await asyncio.sleep(SCAN_EVERY_S)
            self.scan()

    def _take(self, decided: replication_policy.Decided) -> None:
        self._replication, transfers = decided
        for one in transfers:
            self._order(one.host, messages.FetchCheckpoint(one.name))

    def add_host(self, host: str) -> None:
        """Makes a host that was added to the run a possible receiver of checkpoint copies."""
        self._take(replication_policy.on_host_added(self._replication, host))

    def on_host(self, host: str, holds: str) -> None:
        self._take(replication_policy.on_host(self._replication, host, holds))

    def on_host_lost(self, host: str) -> None:
        self._take(replication_policy.on_host_lost(self._replication, host))
        if self._awaited is not None and self._awaited.host == host:
            self._arrived.set()

    def on_fetched(self, host: str, name: str, problem: str) -> None:
        """Handles a member's report that it has copied a checkpoint, or that the copy has failed."""
        self._on_result(host, name, problem)
        log.log(logging.WARNING if problem else logging.INFO, "%s to %s: %s", name, host, problem or "copied")
        decide = replication_policy.on_refused if problem else replication_policy.on_copied
        self._take(decide(self._replication, host, name))

    def on_not_brought(self, host: str, name: str, problem: str) -> None:
        log.warning("%s could not be copied from %s: %s", name, host, problem)
        if self._awaited == (host, name):
            self._arrived.set()

    @property
    def is_behind(self) -> bool:
        """Whether any other connected host has a newer checkpoint than the chief's host."""
        self.scan()
        return replication_policy.newest_elsewhere(self._replication) is not None

    async def restore(self, host: str) -> None:
        """Copies the newest complete checkpoint from another host to `host`, the chief's host.

        If a host fails to send its checkpoint, other hosts are tried. All attempts end after BRING_WITHIN_S.
        """
        deadline = asyncio.get_running_loop().time() + BRING_WITHIN_S
        failed: list[str] = []
        while (one := replication_policy.newest_elsewhere(self._replication, failed)) is not None:
            log.info("copying %s from %s before the chief starts", one.name, one.host)
            self._awaited = one
            self._arrived.clear()
            self._order(one.host, messages.BringCheckpoint(one.name))
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._arrived.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                problem = f"it could not be copied from {one.host} within {BRING_WITHIN_S:.0f} s"
                self._on_result(host, one.name, problem)
                return
            finally:
                self._awaited = None
            self._reported = max(self._reported, checkpoint_folders.newest(self._folder))
            self.scan()
            is_here = self._replication.newest >= one.name
            self._on_result(host, one.name, "" if is_here else f"it could not be copied from {one.host}")
            if not is_here:
                failed.append(one.host)

    async def serve(self, stream: Stream, introduction: Message) -> None:
        """Handles a member's connection for one transfer of a checkpoint from or to this host."""
        host, name = str(introduction.get("carry")), str(introduction.get("name"))
        try:
            folder = checkpoint_folders.name_in(name)
            if folder is None:
                return
            stream.mark_as_bulk()
            stream.send({"welcome": name})
            if introduction.get("brings"):
                if self._awaited == (host, name):
                    await file_transfer.receive(stream, self._folder, folder)
                    self._arrived.set()
            else:
                async with self._uplink:
                    await file_transfer.send(stream, os.path.join(self._folder, folder))
        except (TransferError, *NETWORK_ERRORS) as error:
            log.info("transfer of %s, %s: %s", name, host, error or type(error).__name__)
        finally:
            stream.abort()


class CheckpointReceiver:
    """A member's side of checkpoint copies.

    Args:
        dial: Opens a connection to the primary for a transfer.
        send: Sends a message to the primary.
    """

    def __init__(self, folder: str, run_id: str, host: str, dial: Dial, send: Callable[[messages.FromMember], None]):
        self._folder = folder
        self._run_id = run_id
        self._host = host
        self._dial = dial
        self._send = send
        self._fetching: asyncio.Task[None] | None = None
        self._bringing: asyncio.Task[None] | None = None

    def newest(self) -> messages.CheckpointHeld:
        """Returns a report of this host's newest complete checkpoint."""
        return messages.CheckpointHeld(checkpoint_folders.newest(self._folder, self._run_id))

    def fetch(self, name: str) -> None:
        """Starts copying a checkpoint from the primary. An earlier transfer is cancelled."""
        if checkpoint_folders.name_in(name) is not None:
            before = self._cancel(self._fetching)
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(name, before))

    def bring(self, name: str) -> None:
        """Starts copying a checkpoint to the primary. An earlier transfer is cancelled."""
        if checkpoint_folders.name_in(name) is not None:
            self._cancel(self._bringing)
            self._bringing = asyncio.get_running_loop().create_task(self._bring(name))

    @staticmethod
    def _cancel(task: asyncio.Task[None] | None) -> asyncio.Task[None] | None:
        if task is not None:
            task.cancel()
        return task

    async def _fetch(self, name: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})  # The cancelled transfer must close its files first.
        try:
            problem = await self._retry(name, brings=False)
            if not problem:
                checkpoint_folders.keep_newest(self._folder)
        finally:
            checkpoint_folders.clear_scratch(self._folder)
        self._send(messages.CheckpointFetched(name, problem))

    async def _bring(self, name: str) -> None:
        problem = await self._retry(name, brings=True)
        if problem:
            self._send(messages.CheckpointNotBrought(name, problem))

    async def _retry(self, name: str, *, brings: bool) -> str:
        """Transfers a checkpoint, and resumes the transfer if the connection breaks.

        Returns:
            The reason why the transfer failed, or "" if it succeeded.
        """
        direction, problem = "to the primary" if brings else "from the primary", ""
        for pause_s in (*RETRY_S, None):
            try:
                await self._transfer(name, brings)
                log.info("copied %s %s", name, direction)
                return ""
            except TransferError as error:
                return str(error)
            except NETWORK_ERRORS as error:
                problem = str(error) or type(error).__name__
                log.info("copying %s %s was interrupted: %s", name, direction, problem)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return f"the connection broke repeatedly ({problem})"

    async def _transfer(self, name: str, brings: bool) -> None:
        folder = checkpoint_folders.name_in(name) or ""
        stream, _ = await self._dial({"carry": self._host, "name": name, "brings": brings})
        try:
            stream.mark_as_bulk()
            if brings:
                await file_transfer.send(stream, os.path.join(self._folder, folder))
            else:
                await file_transfer.receive(stream, self._folder, folder)
        finally:
            stream.abort()

    def close(self) -> None:
        for task in (self._fetching, self._bringing):
            self._cancel(task)
