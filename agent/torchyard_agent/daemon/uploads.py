"""Uploads of working folder snapshots by desktops, and access to the files of snapshots."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
from functools import partial
from typing import Any, Callable, TypeVar

from torchyard_agent import snapshot_store
from torchyard_agent.daemon.run_outputs import read_piece
from torchyard_agent.daemon.upload_locks import TOUCH_INTERVAL_S, UploadLocks
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.unix_socket_rpc import Connection, Method

Params = dict[str, Any]
Result = TypeVar("Result")


class _Sender:
    """The connection of a desktop that uploads files."""

    def __init__(self, name: str, incoming: snapshot_store.Incoming):
        self.name = name
        self.incoming = incoming
        self.lock = asyncio.Lock()
        """A lock that keeps the pieces of a file in their order of arrival."""


class Uploads:
    """The methods `snapshot.*`, which access the disk in threads so that the daemon can answer other requests."""

    def __init__(self, agent_dir: str, node: str):
        self._agent_dir = agent_dir
        self._node = node
        self._locks = UploadLocks(agent_dir, node)
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
        """Returns whether this host has the snapshot, which of its files are missing, and the free space in bytes.

        `busy` is true if another desktop is uploading the snapshot to the same store. The caller must then repeat the
        request later.
        """
        root, manifest, sender = str(params["root"]), params.get("manifest"), self._sender(connection)
        free = await self._in_a_thread(_free_bytes, self._agent_dir)
        if await self._in_a_thread(snapshot_store.has, self._agent_dir, root):
            return {"have": True, "missing": [], "busy": False, "free": free}
        if manifest is None:
            busy = await self._in_a_thread(self._locks.is_locked, root, sender.name)
            return {"have": False, "missing": None, "busy": busy, "free": free}
        taking = asyncio.ensure_future(self._in_a_thread(self._locks.take, root, sender.name))
        taking.add_done_callback(partial(self._release_if_gone, connection, sender))
        if not await asyncio.shield(taking):
            return {"have": False, "missing": None, "busy": True, "free": free}
        if self._touching is None or self._touching.done():
            self._touching = asyncio.get_running_loop().create_task(self._touch())
        # The lock's previous owner may have completed the upload just now.
        if await self._in_a_thread(snapshot_store.has, self._agent_dir, root):
            self._locks.release(sender.name, root)
            return {"have": True, "missing": [], "busy": False, "free": free}
        missing = await self._in_a_thread(snapshot_store.missing, self._agent_dir, manifest)
        return {"have": False, "missing": missing, "busy": False, "free": free}

    async def put(self, connection: Connection, params: Params) -> Any:
        """Stores files or parts of files: [{"sha256", "data" (base64), "last"}]."""
        sender = self._sender(connection)
        async with sender.lock:
            await self._in_a_thread(_take, sender.incoming, params["pieces"])
        return {}

    async def seal(self, connection: Connection, params: Params) -> Any:
        """Completes an upload. Raises RpcError (`incomplete`) if files are missing in the store."""
        sender = self._sender(connection)
        async with sender.lock:
            root = await self._in_a_thread(snapshot_store.seal, self._agent_dir, params["manifest"])
        self._locks.release(sender.name, root)
        return {"root": root}

    async def manifest(self, connection: Connection, params: Params) -> Any:
        """Returns the manifest of a snapshot, or None if this host does not have it. Marks the snapshot as used."""
        root = str(params["root"])
        if not await self._in_a_thread(snapshot_store.has, self._agent_dir, root):
            return {"manifest": None}
        return {"manifest": await self._in_a_thread(snapshot_store.read_manifest, self._agent_dir, root)}

    async def get(self, connection: Connection, params: Params) -> Any:
        """Returns a part of a file in the store, starting at `offset`, as {"data" (base64), "next", "size"}."""
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
            hint = "Free some space there. Complete files are kept."
            raise RpcError(f"the disk of {self._agent_dir} {why}", "disk_full", hint) from error

    def _sender(self, connection: Connection) -> _Sender:
        if connection not in self._senders:
            name = f"{self._node}-{os.getpid()}-{id(connection):x}"
            self._senders[connection] = _Sender(name, snapshot_store.Incoming(self._agent_dir, name))
            connection.on_close.append(partial(self._forget, connection))
        return self._senders[connection]

    def _forget(self, connection: Connection) -> None:
        """Ends the upload of a closed connection. Files that are complete are kept for the next attempt."""
        sender = self._senders.pop(connection)
        # A thread removes the incomplete files, once any write in progress has ended.
        asyncio.get_running_loop().run_in_executor(None, sender.incoming.discard)
        self._locks.release(sender.name)

    def _release_if_gone(self, connection: Connection, sender: _Sender, taken: asyncio.Future[bool]) -> None:
        """Releases a lock that a thread took for a desktop which had already disconnected."""
        if connection.closed:
            self._locks.release(sender.name)

    async def _touch(self) -> None:
        while self._locks.touch():
            await asyncio.sleep(TOUCH_INTERVAL_S)


def _take(incoming: snapshot_store.Incoming, pieces: list[Params]) -> None:
    for piece in pieces:
        incoming.put(str(piece["sha256"]), base64.b64decode(piece["data"]), last=bool(piece["last"]))


def _read(agent_dir: str, sha256: str, offset: int) -> Params:
    try:
        return read_piece(snapshot_store.blob(agent_dir, sha256), offset)
    except FileNotFoundError:
        raise snapshot_store.SnapshotProblem("a file of the snapshot is not on this host any more") from None


def _free_bytes(folder: str) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize
