"""Carries checkpoints between the hosts of a run, as `carrying` decides and over `bulk` streams.

The primary's keeper notices what its chief has saved and says over the gang link who is to fetch it; a member calls at
the gang port for it, on a connection of its own. Nothing here ends a run: what could not be carried is a line in the
journal and in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from typing import Callable

from torchyard_agent.keeper.checkpoints import checkpoint_folders, file_transfer
from torchyard_agent.keeper.checkpoints.file_transfer import CarryProblem
from torchyard_agent.keeper.decisions import replication_policy
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream

LOOK_EVERY_S = 1.0
"""How often the chief's folder is looked at."""
BRING_WITHIN_S = 300.0
"""Longest that the chief's start waits for a checkpoint from another host."""
AGAIN_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses before each try to go on with a transfer that broke off; then it is given up."""

log = logging.getLogger(__name__)

Note = Callable[[str, str, str], None]
"""Called with (host, checkpoint, problem): it is there; or it is not, and why."""
Dial = Callable[[Message], Awaitable[tuple[Stream, Message]]]
"""A connection to the primary, given what is said first. Raises one of NETWORK_ERRORS."""


class Sending:
    """The primary's part. `order` says something to the keeper of a host over the gang link."""

    def __init__(
        self,
        folder: str,
        run_id: str,
        carriage: replication_policy.Carriage,
        order: Callable[[str, Message], None],
        note: Note,
    ) -> None:
        self._folder = folder
        self._run_id = run_id
        self._carriage = carriage
        self._order = order
        self._note = note
        self._turn = asyncio.Lock()
        """One transfer at a time has the chief's link."""
        self._asked: replication_policy.Order | None = None
        """What is being brought to the chief's host, and from where."""
        self._brought = asyncio.Event()
        self.look()

    def look(self) -> None:
        """Looks what the chief has saved."""
        name = checkpoint_folders.newest(self._folder, self._run_id)
        if name != self._carriage.newest:
            self._take(replication_policy.on_saved(self._carriage, name))

    async def watch(self) -> None:
        """Looks again and again."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def _take(self, decided: replication_policy.Decided) -> None:
        self._carriage, orders = decided
        for order in orders:
            self._order(order.host, {"say": "fetch", "name": order.name})

    def on_host(self, host: str, holds: str) -> None:
        self._take(replication_policy.on_host(self._carriage, host, holds))

    def on_host_lost(self, host: str) -> None:
        self._take(replication_policy.on_host_lost(self._carriage, host))
        if self._asked is not None and self._asked.host == host:
            self._brought.set()  # the wait for it is over

    def on_fetched(self, host: str, name: str, problem: str) -> None:
        """A member has fetched a checkpoint, or cannot."""
        self._note(host, name, problem)
        log.log(logging.WARNING if problem else logging.INFO, "%s, for %s: %s", name, host, problem or "carried")
        decide = replication_policy.on_refused if problem else replication_policy.on_carried
        self._take(decide(self._carriage, host, name))

    def on_not_brought(self, host: str, name: str, problem: str) -> None:
        log.warning("%s could not be brought from %s: %s", name, host, problem)
        if self._asked == (host, name):
            self._brought.set()

    @property
    def must_bring(self) -> bool:
        """Whether another host has a newer checkpoint than the chief's."""
        self.look()
        return replication_policy.to_bring(self._carriage) is not None

    async def bring(self, host: str) -> None:
        """Brings the newest complete checkpoint to the chief's host, `host`, from who has it; in bounded time."""
        deadline = asyncio.get_running_loop().time() + BRING_WITHIN_S
        failed: list[str] = []
        while (order := replication_policy.to_bring(self._carriage, failed)) is not None:
            log.info("bringing %s from %s before the chief starts", order.name, order.host)
            self._asked = order
            self._brought.clear()
            self._order(order.host, {"say": "bring", "name": order.name})
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._brought.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                self._note(host, order.name, f"it could not be brought from {order.host} within {BRING_WITHIN_S:.0f} s")
                return
            finally:
                self._asked = None
            self.look()
            is_here = self._carriage.newest >= order.name
            self._note(host, order.name, "" if is_here else f"it could not be brought from {order.host}")
            if not is_here:
                failed.append(order.host)

    async def meet(self, stream: Stream, introduction: Message) -> None:
        """A member's connection: it fetches the checkpoint that it names, or brings it."""
        host, name = str(introduction.get("carry")), str(introduction.get("name"))
        try:
            folder = checkpoint_folders.name_in(name)
            if folder is None:
                return
            stream.give_way()
            stream.send({"welcome": name})
            if introduction.get("brings"):
                if self._asked == (host, name):
                    await file_transfer.take(stream, self._folder, folder)
                    self._brought.set()
            else:
                async with self._turn:
                    await file_transfer.give(stream, os.path.join(self._folder, folder))
        except (CarryProblem, *NETWORK_ERRORS) as error:
            log.info("carrying %s, %s: %s", name, host, error or type(error).__name__)
        finally:
            stream.abort()


class Receiving:
    """A member's part. `tell` says something to the primary over the gang link."""

    def __init__(self, folder: str, run_id: str, host: str, dial: Dial, tell: Callable[[Message], None]):
        self._folder = folder
        self._run_id = run_id
        self._host = host
        self._dial = dial
        self._tell = tell
        self._fetching: asyncio.Task[None] | None = None
        self._bringing: asyncio.Task[None] | None = None

    def holds(self) -> Message:
        """What this host has, for the primary to know."""
        return {"say": "holds", "name": checkpoint_folders.newest(self._folder, self._run_id)}

    def obey(self, message: Message) -> None:
        """`fetch` a checkpoint from the primary, instead of the one before it; or `bring` it one."""
        loop, name = asyncio.get_running_loop(), str(message["name"])
        if checkpoint_folders.name_in(name) is None:
            return
        if message["say"] == "bring":
            self._cancel(self._bringing)
            self._bringing = loop.create_task(self._bring(name))
        else:
            before = self._cancel(self._fetching)
            self._fetching = loop.create_task(self._fetch(name, before))

    @staticmethod
    def _cancel(task: asyncio.Task[None] | None) -> asyncio.Task[None] | None:
        if task is not None:
            task.cancel()
        return task

    async def _fetch(self, name: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})  # it lets go of its files first
        try:
            problem = await self._try("fetched", name, self._fetch_once)
            if not problem:
                checkpoint_folders.keep_newest(self._folder)
        finally:
            checkpoint_folders.clear_scratch(self._folder)
        self._tell({"say": "fetched", "name": name, "problem": problem})

    async def _fetch_once(self, name: str) -> None:
        stream, _ = await self._dial({"carry": self._host, "name": name})
        try:
            stream.give_way()
            await file_transfer.take(stream, self._folder, checkpoint_folders.name_in(name) or "")
        finally:
            stream.abort()

    async def _bring(self, name: str) -> None:
        problem = await self._try("brought", name, self._bring_once)
        if problem:
            self._tell({"say": "not_brought", "name": name, "problem": problem})

    async def _bring_once(self, name: str) -> None:
        stream, _ = await self._dial({"carry": self._host, "name": name, "brings": True})
        try:
            stream.give_way()
            await file_transfer.give(stream, os.path.join(self._folder, checkpoint_folders.name_in(name) or ""))
        finally:
            stream.abort()

    async def _try(self, done: str, name: str, once: Callable[[str], Awaitable[None]]) -> str:
        """Again and again after broken connections. Why it could not be, empty where it could."""
        problem = ""
        for pause_s in (*AGAIN_S, None):
            try:
                await once(name)
                log.info("%s %s", done, name)
                return ""
            except CarryProblem as error:
                return str(error)
            except NETWORK_ERRORS as error:
                problem = str(error) or type(error).__name__
                log.info("%s was not %s: %s", name, done, problem)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return f"the connection broke off again and again ({problem})"

    def close(self) -> None:
        for task in (self._fetching, self._bringing):
            self._cancel(task)
