"""GPU locks that apply to all users of a host.

A process locks a GPU by binding the abstract address `@torchyard/gpu/<uuid>`. The kernel releases the address when the
process (the holder of the lock) exits. The holder listens on the socket, and sends a description of its run to each
client. The client obtains the holder's user from the kernel (SO_PEERCRED), so the user cannot be forged.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import time
from collections.abc import Sequence
from typing import Any

from torchyard_agent.peer_credentials import peer_uid
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.paths import gpu_socket
from torchyard_agent.telemetry.process_owners import user_name

ANSWER_S = 1.0
"""Longest time in seconds to wait for the answer of a lock's holder."""
_MAX_ANSWER = 4096
_MAX_TEXT = 200
_MAX_ACCEPTS = 64
_RETRY_ACCEPT_S = 1.0

log = logging.getLogger(__name__)


class GpuHeld(RpcError):
    """Raised if another process has locked the GPU.

    Args:
        holder: A dictionary with "user", as reported by the kernel, and with "run_id", "name" and "host" if the holder
            sent them. It is empty if the holder did not accept a connection.
    """

    def __init__(self, uuid: str, holder: dict[str, str]):
        hint = "Wait for it to end, choose other GPUs, or contact the user."
        super().__init__(f"GPU {uuid} is {describe(holder)}", "gpu_held", hint)
        self.uuid = uuid
        self.holder = holder


def describe(holder: dict[str, str]) -> str:
    """Returns a description of a GPU lock's holder, such as "held by lee for run digits (20260101-ab12)"."""
    user = holder.get("user", "")
    run_id, name = holder.get("run_id", ""), holder.get("name", "")
    if not user:
        return "held by an unknown process"
    if not run_id and not name:
        return f"held by an unknown process of user {user}"
    return (
        f"held by {user} for run {name} ({run_id})" if name and run_id else f"held by {user} for run {name or run_id}"
    )


class GpuLocks:
    """The GPUs that this process has locked. The locks are held until they are released or the process exits."""

    def __init__(self, listeners: dict[str, socket.socket], holder: dict[str, Any]):
        self._listeners = listeners
        self.holder = holder
        self._answer = json.dumps({"holder": holder}).encode() + b"\n"
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def uuids(self) -> list[str]:
        return list(self._listeners)

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts answering clients that ask which run has locked these GPUs."""
        self._loop = loop
        for listener in self._listeners.values():
            loop.add_reader(listener, self._answer_clients, listener)

    def release(self) -> None:
        """Releases the GPUs. May be called repeatedly."""
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(listener)
            listener.close()

    def _answer_clients(self, listener: socket.socket) -> None:
        """Answers the waiting clients. This does not block, because an answer fits into the socket's send buffer."""
        for _ in range(_MAX_ACCEPTS):
            try:
                client, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                # The process probably has no free file descriptors. Without a pause, the event loop would call this
                # method again immediately.
                log.warning("cannot answer a client that requests the holder of a GPU: %s", error)
                if self._loop is not None:
                    self._loop.remove_reader(listener)
                    self._loop.call_later(_RETRY_ACCEPT_S, self._listen_again, listener)
                return
            with client, contextlib.suppress(OSError):
                client.setblocking(False)
                client.send(self._answer)

    def _listen_again(self, listener: socket.socket) -> None:
        if self._loop is not None and listener in self._listeners.values():
            self._loop.add_reader(listener, self._answer_clients, listener)


def take(uuids: Sequence[str], holder: dict[str, Any]) -> GpuLocks:
    """Locks all given GPUs, or none if another process has locked one of them.

    GPUs are locked in a fixed order. Therefore, of two processes that lock the same GPUs, one gets all of them.

    Raises:
        GpuHeld: Another process has locked one of the GPUs. Raised within about a second.
    """
    with contextlib.ExitStack() as opened:
        listeners = {uuid: opened.enter_context(_bind(uuid)) for uuid in sorted(set(uuids))}
        opened.pop_all()
    return GpuLocks(listeners, holder)


def holder_of(uuid: str) -> dict[str, str] | None:
    """Returns the holder of the GPU's lock (see `GpuHeld`), or None if no process listens at the lock's address.

    Takes at most about ANSWER_S.
    """
    deadline = time.monotonic() + ANSWER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        while True:
            client.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                client.connect(gpu_socket(uuid))
                break
            except ConnectionRefusedError:
                return None
            except OSError:
                # The holder's listen backlog is full. Its run remains unknown unless the holder accepts a connection in
                # time.
                if time.monotonic() >= deadline:
                    return {}
                time.sleep(0.02)
        return {**_claims(client, deadline), "user": user_name(peer_uid(client))}


def _bind(uuid: str) -> socket.socket:
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        for _ in range(10):
            try:
                listener.bind(gpu_socket(uuid))
                listener.listen(64)
                listener.setblocking(False)
                opened.pop_all()
                return listener
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            holder = holder_of(uuid)
            if holder is not None:
                raise GpuHeld(uuid, holder)
            # The holder has bound the address but is not yet listening, or has just released it.
            time.sleep(0.02)
        raise GpuHeld(uuid, {})


def _claims(client: socket.socket, deadline: float) -> dict[str, str]:
    """Returns the valid part of a lock holder's answer, which is empty if the answer is missing or invalid."""
    answer = b""
    try:
        while b"\n" not in answer and len(answer) < _MAX_ANSWER:
            client.settimeout(max(deadline - time.monotonic(), 0.001))
            part = client.recv(_MAX_ANSWER)
            if not part or time.monotonic() > deadline:
                break
            answer += part
        claims = json.loads(answer.split(b"\n", 1)[0])["holder"]
        return {name: _printable(claims[name]) for name in ("run_id", "name", "host") if claims.get(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _printable(value: object) -> str:
    """Returns text from another process as one printable line."""
    return "".join(character for character in str(value)[:_MAX_TEXT] if character.isprintable())
