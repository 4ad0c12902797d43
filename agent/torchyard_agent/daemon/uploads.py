"""A working folder as it arrives: what this host lacks of it, its pieces in their order, and its end."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
from functools import partial
from typing import Any, Callable, TypeVar

from torchyard_agent import snapshot_store
from torchyard_agent.daemon.upload_locks import TOUCH_EVERY_S, Turns
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.unix_socket_rpc import Connection, Method

PIECE = 512 * 1024
"""Bytes of a file in one answer, at most."""
Params = dict[str, Any]
Result = TypeVar("Result")


class _Sender:
    """A desktop's connection that sends files here."""

    def __init__(self, name: str, incoming: snapshot_store.Incoming):
        self.name = name
        self.incoming = incoming
        self.turn = asyncio.Lock()
        """Pieces of a file are taken in the order in which they came."""


class Receiving:
    """The methods `snapshot.*`. Disks are waited for on threads: the daemon answers meanwhile."""

    def __init__(self, agent_dir: str, node: str):
        self._agent_dir = agent_dir
        self._node = node
        self._turns = Turns(agent_dir, node)
        self._senders: dict[Connection, _Sender] = {}
        self._touching: asyncio.Task[None] | None = None

    def table(self) -> dict[str, Method]:
        return {
            "snapshot.offer": self.offer,
            "snapshot.put": self.put,
            "snapshot.seal": self.seal,
            "snapshot.manifest": self.manifest,
            "snapshot.get": self.get,
        }

    async def offer(self, connection: Connection, params: Params) -> Any:
        """Whether this host has the snapshot; given its manifest, which files to send; and bytes of free disk.

        `busy`: somebody else is sending it into the same store just now; whoever asks waits and asks again.
        """
        root, manifest, sender = str(params["root"]), params.get("manifest"), self._sender(connection)
        free = await self._in_a_thread(_free_bytes, self._agent_dir)
        if await self._in_a_thread(snapshot_store.has, self._agent_dir, root):
            return {"have": True, "missing": [], "busy": False, "free": free}
        if manifest is None:
            busy = await self._in_a_thread(self._turns.is_taken, root, sender.name)
            return {"have": False, "missing": None, "busy": busy, "free": free}
        taking = asyncio.ensure_future(self._in_a_thread(self._turns.take, root, sender.name))
        taking.add_done_callback(partial(self._give_back_if_gone, connection, sender))
        if not await asyncio.shield(taking):
            return {"have": False, "missing": None, "busy": True, "free": free}
        if self._touching is None or self._touching.done():
            self._touching = asyncio.get_running_loop().create_task(self._touch())
        # Whoever had the turn before may have ended just now.
        if await self._in_a_thread(snapshot_store.has, self._agent_dir, root):
            self._turns.give_back(sender.name, root)
            return {"have": True, "missing": [], "busy": False, "free": free}
        missing = await self._in_a_thread(snapshot_store.missing, self._agent_dir, manifest)
        return {"have": False, "missing": missing, "busy": False, "free": free}

    async def put(self, connection: Connection, params: Params) -> Any:
        """Files, or pieces of them: [{"sha256", "data" (base64), "last"}]."""
        sender = self._sender(connection)
        async with sender.turn:
            await self._in_a_thread(_take, sender.incoming, params["pieces"])
        return {}

    async def seal(self, connection: Connection, params: Params) -> Any:
        """Records the snapshot; its sender is through. `incomplete` where files of it have gone meanwhile."""
        sender = self._sender(connection)
        async with sender.turn:
            root = await self._in_a_thread(snapshot_store.seal, self._agent_dir, params["manifest"])
        self._turns.give_back(sender.name, root)
        return {"root": root}

    async def manifest(self, connection: Connection, params: Params) -> Any:
        """The list of a snapshot's files, where this host has it whole; it counts as used now. Else None."""
        root = str(params["root"])
        if not await self._in_a_thread(snapshot_store.has, self._agent_dir, root):
            return {"manifest": None}
        return {"manifest": await self._in_a_thread(snapshot_store.read_manifest, self._agent_dir, root)}

    async def get(self, connection: Connection, params: Params) -> Any:
        """A piece of a file of the store, from `offset` on: {"data" (base64), "next", "size"}."""
        return await self._in_a_thread(_read, self._agent_dir, str(params["sha256"]), int(params["offset"]))

    async def _in_a_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
        except snapshot_store.Incomplete as problem:
            raise RpcError(str(problem), "incomplete", "Start the run again.") from problem
        except snapshot_store.SnapshotProblem as problem:
            raise RpcError(str(problem), "snapshot", "Start the run again.") from problem
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            why = "is full" if error.errno == errno.ENOSPC else "is full for this user (quota)"
            hint = "Make room there, or set `agent_dir` of the host in the fleet file; what has arrived stays."
            raise RpcError(f"the disk of {self._agent_dir} {why}", "disk_full", hint) from error

    def _sender(self, connection: Connection) -> _Sender:
        if connection not in self._senders:
            name = f"{self._node}-{os.getpid()}-{id(connection):x}"
            self._senders[connection] = _Sender(name, snapshot_store.Incoming(self._agent_dir, name))
            connection.on_close.append(partial(self._forget, connection))
        return self._senders[connection]

    def _forget(self, connection: Connection) -> None:
        """Whole files that have come stay, so that the next try goes on from there."""
        sender = self._senders.pop(connection)
        asyncio.get_running_loop().run_in_executor(None, sender.incoming.discard)  # after what is being written
        self._turns.give_back(sender.name)

    def _give_back_if_gone(self, connection: Connection, sender: _Sender, taken: asyncio.Future[bool]) -> None:
        """A turn that was taken while its desktop hung up: the thread took it after `_forget` had looked."""
        if connection.closed:
            self._turns.give_back(sender.name)

    async def _touch(self) -> None:
        while self._turns.touch():
            await asyncio.sleep(TOUCH_EVERY_S)


def _take(incoming: snapshot_store.Incoming, pieces: list[Params]) -> None:
    for piece in pieces:
        incoming.put(str(piece["sha256"]), base64.b64decode(piece["data"]), last=bool(piece["last"]))


def _read(agent_dir: str, sha256: str, offset: int) -> Params:
    try:
        with open(snapshot_store.blob(agent_dir, sha256), "rb") as file:
            file.seek(offset)
            data = file.read(PIECE)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise snapshot_store.SnapshotProblem("a file of the snapshot is not on this host any more") from None
    return {"data": base64.b64encode(data).decode(), "next": offset + len(data), "size": size}


def _free_bytes(folder: str) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize
