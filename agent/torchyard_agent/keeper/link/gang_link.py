"""The gang link: authenticated connections of members to the primary over the data network.

Ranks connect to the same port with a different key to use the join store (`join_store`).

A `MessageChannel` keeps its messages when the connection breaks: messages are numbered and acknowledged, and are sent
again after reconnecting. Each handshake has its own task and a limit of five seconds. Therefore a client that does not
respond does not delay other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable
from typing import Callable

from torchyard_agent.protocol import authenticated_transport
from torchyard_agent.protocol.authenticated_transport import (
    AuthenticationError,
    CallerHandshake,
    FrameCodec,
    Handshake,
    ListenerHandshake,
    Message,
    RefusedConnections,
)

__all__ = ["NETWORK_ERRORS", "CallerHandler", "Listener", "Message", "MessageChannel", "Stream", "admit", "call"]

MAX_UNAUTHENTICATED = 128
"""Maximum number of connections that are still in their handshake. If there are more, the oldest of them is closed."""
NETWORK_ERRORS = (OSError, EOFError, AuthenticationError, asyncio.TimeoutError)
"""The errors that end a connection. asyncio.IncompleteReadError is an EOFError."""

log = logging.getLogger(__name__)


class Stream:
    """An authenticated connection: both ends have proved that they have the same key."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: FrameCodec):
        self._reader = reader
        self._writer = writer
        self._codec = codec

    def send(self, frame: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(self._codec.seal(authenticated_transport.encode_message(frame)))

    def keep_alive(self) -> None:
        """Enables TCP keepalive. The kernel ends the connection about 10 s after the other host stops responding."""
        connection = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # The socket may already be closed. The next read then fails.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)

    @property
    def backlog(self) -> int:
        """The number of bytes in the send buffer."""
        return self._writer.transport.get_write_buffer_size()

    async def receive(self, longest: int = authenticated_transport.MAX_PAYLOAD) -> Message:
        """Returns the next message, of at most `longest` bytes.

        Raises one of NETWORK_ERRORS if the connection fails.
        """
        return authenticated_transport.decode_message(await self.receive_piece(longest))

    async def send_piece(self, data: bytes) -> None:
        """Sends `data` as one frame, and waits while the send buffer is full.

        Raises one of NETWORK_ERRORS if the connection fails.
        """
        self._writer.write(self._codec.seal(data))
        await self._writer.drain()

    async def receive_piece(self, longest: int = authenticated_transport.MAX_PAYLOAD) -> bytes:
        """Returns the payload of the next frame. Raises one of NETWORK_ERRORS if the connection fails."""
        codec = self._codec
        while (payload := codec.receive(await self._reader.readexactly(codec.expects), longest)) is None:
            pass
        return payload

    def mark_as_bulk(self) -> None:
        """Marks outgoing packets as bulk traffic (DSCP CS1). Switches can then give other traffic priority."""
        connection = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            if connection.family == socket.AF_INET6:
                connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x20)
            else:
                connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20)

    def abort(self) -> None:
        self._writer.transport.abort()


async def admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *keys: bytes
) -> tuple[Stream, Message, bytes]:
    """Performs the listener's side of the handshake. The client must know one of `keys`.

    Returns:
        The stream, the client's first message (its introduction), and the key that the client knows.
    """
    handshake = ListenerHandshake(*keys)
    stream = await _authenticate(reader, writer, handshake)
    assert handshake.key is not None
    return stream, await stream.receive(), handshake.key


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> Stream:
    # asyncio sets TCP_NODELAY only for sockets that were created with a protocol number, so not for accepted ones.
    # Without TCP_NODELAY, the second of two messages waits up to 40 ms for the acknowledgement of the first.
    with contextlib.suppress(OSError):  # The socket may already be closed. The next read then fails.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.write(handshake.to_send)
    while handshake.expects:
        writer.write(handshake.receive(await reader.readexactly(handshake.expects)))
    return Stream(reader, writer, handshake.codec())


async def call(address: str, port: int, secret: bytes, introduction: Message) -> tuple[Stream, Message]:
    """Connects to the primary at an IP address, and returns the stream and the primary's first message.

    Raises one of NETWORK_ERRORS if this fails.
    """
    return await asyncio.wait_for(
        _call(address, port, secret, introduction), authenticated_transport.HANDSHAKE_DEADLINE_S
    )


async def _call(address: str, port: int, secret: bytes, introduction: Message) -> tuple[Stream, Message]:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        stream = await _authenticate(reader, writer, CallerHandshake(secret))
        stream.send(introduction)
        return stream, await stream.receive()
    except BaseException:
        # BaseException includes the cancellation at the deadline, after which the connection must also be closed.
        writer.transport.abort()
        raise


class MessageChannel:
    """One end of a message channel that outlives its connection.

    Messages that were not acknowledged are sent again over the next connection.
    """

    def __init__(self, on_message: Callable[[Message], None]):
        self._on_message = on_message
        self._stream: Stream | None = None
        self._sent = 0
        self._unacknowledged: deque[tuple[int, Message]] = deque()
        self.received = 0
        """The number of the last message that was received."""
        self.heard_at = asyncio.get_running_loop().time()

    @property
    def connected(self) -> bool:
        return self._stream is not None

    @property
    def all_acknowledged(self) -> bool:
        """Whether the other end has acknowledged all messages."""
        return not self._unacknowledged

    def send(self, message: Message) -> None:
        """Sends a message immediately, or after the next reconnect if there is no connection."""
        self._sent += 1
        self._unacknowledged.append((self._sent, message))
        self._transmit(self._sent, message)

    def discard(self, is_stale: Callable[[Message], bool]) -> None:
        """Drops the unacknowledged messages for which `is_stale` returns true.

        If the other end has not received a dropped message, it sees a gap in the message numbers.
        """
        kept = [(number, message) for number, message in self._unacknowledged if not is_stale(message)]
        self._unacknowledged = deque(kept)

    def beat(self) -> None:
        """Sends a heartbeat, which also acknowledges the received messages."""
        if self._stream is not None:
            self._stream.send({"got": self.received})

    def _transmit(self, number: int, message: Message) -> None:
        if self._stream is not None:
            self._stream.send({"n": number, "got": self.received, "body": message})

    async def run_connection(self, stream: Stream, got: int) -> None:
        """Sends and receives over a new connection until it ends. The new connection replaces an older one.

        Args:
            stream: The connection.
            got: The number of the last message that the other end has received.
        """
        if self._stream is not None:
            self._stream.abort()
        self._stream = stream
        self.heard_at = asyncio.get_running_loop().time()
        self._acknowledge(got)
        for number, message in self._unacknowledged:
            self._transmit(number, message)
        try:
            while self._stream is stream:
                self._on_frame(await stream.receive(), stream)
        except NETWORK_ERRORS as error:
            log.info("a gang connection ended: %s", error or type(error).__name__)
        finally:
            stream.abort()
            if self._stream is stream:
                self._stream = None

    def _on_frame(self, frame: Message, stream: Stream) -> None:
        if self._stream is not stream:
            return
        self.heard_at = asyncio.get_running_loop().time()
        self._acknowledge(frame["got"])
        if "n" not in frame or frame["n"] <= self.received:
            return
        self.received = frame["n"]
        self._on_message(frame["body"])
        self.beat()

    def _acknowledge(self, got: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= got:
            self._unacknowledged.popleft()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream = None


CallerHandler = Callable[[Stream, Message], Awaitable[None]]


class Listener:
    """The primary's server. It accepts authenticated clients, and limits the load that other clients can cause.

    Args:
        callers: The handler of clients for each key. Keepers use the run's secret, and ranks the exchange key derived
            from it.
    """

    def __init__(self, callers: dict[bytes, CallerHandler]):
        self._callers = callers
        self._unauthenticated: dict[asyncio.StreamWriter, None] = {}
        self._refusals = RefusedConnections()
        self._server: asyncio.AbstractServer | None = None

    async def open(self, bound: socket.socket) -> None:
        """Starts listening on a socket that was bound when the run was prepared."""
        bound.setblocking(False)
        self._server = await asyncio.start_server(self._on_connection, sock=bound)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._unauthenticated[writer] = None
        if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.transport.abort()
        peer = writer.get_extra_info("peername")
        try:
            handshake = admit(reader, writer, *self._callers)
            stream, introduction, key = await asyncio.wait_for(handshake, authenticated_transport.HANDSHAKE_DEADLINE_S)
        except (*NETWORK_ERRORS, ValueError) as error:
            line = self._refusals.note(f"refused {peer} at the gang link: {error or 'the handshake timed out'}")
            if line:
                log.warning("%s", line)
            writer.transport.abort()
            return
        finally:
            self._unauthenticated.pop(writer, None)
        try:
            await self._callers[key](stream, introduction)
        except Exception as error:
            # The event loop's exception handler ends the run.
            context = {"message": "a client's message could not be handled", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._unauthenticated):
            writer.transport.abort()
