"""JSON-RPC over abstract Unix sockets: the server and the client of daemons and keepers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable
from typing import Any, Callable

from torchyard_agent.peer_credentials import peer_uid
from torchyard_agent.protocol import jsonrpc
from torchyard_agent.protocol.jsonrpc import RpcError

Method = Callable[["Connection", dict[str, Any]], Awaitable[Any]]
NotificationListener = Callable[[str, dict[str, Any]], None]

WRITE_LIMIT = 4 * jsonrpc.MAX_LINE
"""Number of bytes queued for a client above which the client is disconnected."""
PAUSE_BACKLOG = 1024 * 1024
"""Number of bytes queued for a client above which no further requests of the client are read."""
MAX_UNANSWERED = 1000
"""Number of a client's pending requests above which no further requests of the client are read."""
READ_TIMEOUT_S = 10.0
"""Time limit in seconds for a client for which more than PAUSE_BACKLOG bytes are queued.

If the client reads nothing within this time, it is disconnected.
"""
POLL_S = 0.05

log = logging.getLogger(__name__)


class Connection:
    """One end of a JSON-RPC connection. It answers requests with `methods`, and can send requests of its own."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        methods: dict[str, Method],
        on_notification: NotificationListener | None = None,
    ):
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._on_notification = on_notification
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_close: list[Callable[[], None]] = []
        """Functions that are called once, when the connection ends."""
        self.closed = False

    async def call(self, method: str, params: dict[str, Any], timeout: float | None = 30.0) -> Any:
        """Calls a method of the peer and returns its result.

        Raises RpcError if the method fails, the connection ends, or no response arrives within `timeout` seconds. If
        `timeout` is None, there is no time limit.
        """
        if self.closed:
            raise RpcError("the connection is closed", "disconnected")
        self._next_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = future
        request_id = self._next_id
        self._send(jsonrpc.request(request_id, method, params))
        try:
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            raise RpcError(f"no answer to {method} within {timeout:.0f} s", "timeout") from None
        finally:
            self._waiting.pop(request_id, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification without blocking.

        If more than WRITE_LIMIT bytes are then queued for the peer, it is disconnected.
        """
        if not self.closed:
            self._send(jsonrpc.notification(method, params))

    @property
    def backlog(self) -> int:
        """The number of bytes that are queued in this process because the peer does not read fast enough."""
        return int(self._writer.transport.get_write_buffer_size())

    def _send(self, line: bytes) -> None:
        if self._writer.is_closing():
            return
        self._writer.write(line)
        if self.backlog > WRITE_LIMIT:
            log.warning("dropping a client that does not read: %d bytes wait for it", self.backlog)
            self._writer.transport.abort()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keeps a reference to a task until it ends or close() cancels it. The event loop has only a weak reference."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def serve(self) -> None:
        """Reads messages until the peer disconnects or sends an invalid message, and then closes the connection."""
        try:
            while True:
                line = await self._reader.readline()
                if not line.endswith(b"\n"):
                    break
                self._on_message(jsonrpc.parse(line))
                if len(self._tasks) > MAX_UNANSWERED or self.backlog > PAUSE_BACKLOG:
                    await self._wait_for_reader()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except ValueError as error:  # The message is invalid, or the line is too long.
            log.warning("closing a connection: %s", error)
            self._send(jsonrpc.error_response(None, RpcError(str(error), "malformed", number=jsonrpc.PARSE_ERROR)))
        finally:
            self.close()

    async def _wait_for_reader(self) -> None:
        """Waits until few enough requests are pending and few enough bytes are queued for the peer.

        Raises ConnectionError if too many bytes are queued and the peer reads nothing for READ_TIMEOUT_S.
        """
        loop = asyncio.get_running_loop()
        before, since = self.backlog, loop.time()
        while len(self._tasks) > MAX_UNANSWERED or self.backlog > PAUSE_BACKLOG:
            await asyncio.sleep(POLL_S)
            if self.backlog != before or before <= PAUSE_BACKLOG:
                before, since = self.backlog, loop.time()
            elif loop.time() - since > READ_TIMEOUT_S:
                log.warning("dropping a client that does not read: %d bytes wait for it", self.backlog)
                self._writer.transport.abort()
                raise ConnectionAbortedError("the client does not read")

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RpcError("the connection ended before the answer came", "disconnected"))
        for task in self._tasks:
            task.cancel()
        self._writer.close()
        for callback in self.on_close:
            callback()

    def _on_message(self, message: dict[str, Any]) -> None:
        """Starts a task for a request, or delivers a notification or a response."""
        if "method" in message:
            if "id" in message:
                self.keep(asyncio.get_running_loop().create_task(self._answer(message)))
            elif self._on_notification is not None:
                self._on_notification(str(message["method"]), message.get("params", {}))
            return
        future = self._waiting.get(message.get("id", 0))
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(jsonrpc.error_of(message))
        else:
            future.set_result(message.get("result"))

    async def _answer(self, message: dict[str, Any]) -> None:
        id, name = message["id"], str(message["method"])
        method = self._methods.get(name)
        try:
            if method is None:
                raise RpcError(f"this agent knows no method {name}", "unknown_method", number=jsonrpc.METHOD_NOT_FOUND)
            self._send(jsonrpc.response(id, await method(self, message.get("params", {}))))
        except RpcError as error:
            self._send(jsonrpc.error_response(id, error))
        except (KeyError, TypeError) as error:
            log.exception("parameters of %s", name)
            wrong = RpcError(f"{name}: wrong parameters: {error!r}", "params", number=jsonrpc.INVALID_PARAMS)
            self._send(jsonrpc.error_response(id, wrong))
        except OSError as error:
            log.warning("%s failed: %s", name, error)
            self._send(jsonrpc.error_response(id, RpcError(f"{name}: {error}", "os_error")))
        except Exception as error:
            # Any other error in a request is logged and returned to the client.
            log.exception("%s failed", name)
            broken = RpcError(f"{name}: {error!r}", "internal", number=jsonrpc.INTERNAL_ERROR)
            self._send(jsonrpc.error_response(id, broken))


def bind(address: str) -> socket.socket:
    """Returns a listening abstract Unix socket. Raises OSError (EADDRINUSE) if the address is in use."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        listener.bind(address)
        listener.listen(64)
        listener.setblocking(False)
        opened.pop_all()
        return listener


async def serve(
    listener: socket.socket, methods: dict[str, Method], connections: set[Connection]
) -> asyncio.AbstractServer:
    """Serves `methods` to processes of this user. `connections` is kept equal to the set of open connections."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if peer_uid(writer.get_extra_info("socket")) != os.getuid():
            writer.close()
            return
        connection = Connection(reader, writer, methods)
        connections.add(connection)
        connection.on_close.append(lambda: connections.discard(connection))
        # At the end of the process, asyncio would report the cancellation of this task as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await connection.serve()

    return await asyncio.start_unix_server(on_connection, sock=listener, limit=jsonrpc.MAX_LINE)


async def adopt(
    client: socket.socket, pending: bytes, methods: dict[str, Method], connections: set[Connection]
) -> None:
    """Serves a connection that another server has accepted.

    `pending` contains the bytes that the other server has received but not handled.
    """
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    reader = asyncio.StreamReader(limit=jsonrpc.MAX_LINE)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, client)
    if pending:
        reader.feed_data(pending)
    connection = Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop), methods)
    connections.add(connection)
    connection.on_close.append(lambda: connections.discard(connection))
    connection.keep(loop.create_task(connection.serve()))


async def connect(address: str, on_notification: NotificationListener | None = None) -> Connection:
    """Connects to the server at `address`, and starts a task that reads messages.

    Raises:
        ConnectionRefusedError: No process listens at the address.
        PermissionError: A process of another user listens at the address.
        BlockingIOError: The server's listen backlog is full.
    """
    reader, writer = await asyncio.open_unix_connection(address, limit=jsonrpc.MAX_LINE)
    uid = peer_uid(writer.get_extra_info("socket"))
    if uid != os.getuid():
        writer.close()
        if uid == -1:  # asyncio does not report EAGAIN when it connects a Unix socket, which is then not connected.
            raise BlockingIOError(errno.EAGAIN, f"the process at @{address[1:]} accepts no connections")
        raise PermissionError(f"@{address[1:]} is served by another user")
    connection = Connection(reader, writer, {}, on_notification)
    connection.keep(asyncio.get_running_loop().create_task(connection.serve()))
    return connection
