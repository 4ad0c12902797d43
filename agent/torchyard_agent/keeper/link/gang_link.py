"""The gang link: run keepers speak with the primary's over the data network, authenticated frame by frame.

Ranks come through the same door, to the join store (`join_store`), with a key of their own.

A `Line` is one end of a conversation that outlives its connections: messages are numbered, acknowledged, and sent
again after a reconnect, so that a router's hiccup loses none. Strangers are given five seconds and a task of their
own: a silent one blocks nobody.
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

__all__ = ["NETWORK_ERRORS", "Listener", "Message", "MessageChannel", "OnCaller", "Stream", "admit", "call"]

STRANGERS = 128
"""Connections that have not proved themselves yet; beyond, the oldest makes room."""
NETWORK_ERRORS = (OSError, EOFError, AuthenticationError, asyncio.TimeoutError)
"""What a connection may end with; asyncio.IncompleteReadError is an EOFError."""

log = logging.getLogger(__name__)


class Stream:
    """A connection whose two ends have proved that they know the run's secret."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: FrameCodec):
        self._reader = reader
        self._writer = writer
        self._codec = codec

    def send(self, frame: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(self._codec.seal(authenticated_transport.encode_message(frame)))

    def keep_alive(self) -> None:
        """Has the kernel end the connection some 10 s after the other host fell silent."""
        connection = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it was ended meanwhile: whoever reads from it finds out
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)

    @property
    def backlog(self) -> int:
        """Bytes that the other end has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    async def receive(self, longest: int = authenticated_transport.MAX_PAYLOAD) -> Message:
        """The next message, of at most `longest` bytes. Raises one of NETWORK_ERRORS."""
        return authenticated_transport.decode_message(await self.receive_piece(longest))

    async def send_piece(self, data: bytes) -> None:
        """A frame of bytes. Waits while the other end is behind. Raises one of NETWORK_ERRORS."""
        self._writer.write(self._codec.seal(data))
        await self._writer.drain()

    async def receive_piece(self, longest: int = authenticated_transport.MAX_PAYLOAD) -> bytes:
        """The payload of the next frame. Raises one of NETWORK_ERRORS."""
        codec = self._codec
        while (payload := codec.receive(await self._reader.readexactly(codec.expects), longest)) is None:
            pass
        return payload

    def give_way(self) -> None:
        """Marks what it sends as bulk (DSCP CS1), for switches that let others pass first."""
        connected = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            if connected.family == socket.AF_INET6:
                connected.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x20)
            else:
                connected.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20)

    def abort(self) -> None:
        self._writer.transport.abort()


async def admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *keys: bytes
) -> tuple[Stream, Message, bytes]:
    """The listener's half of the handshake, for callers that know one of `keys`.

    Returns:
        The stream, the caller's first message, in which it introduces itself, and the key that it knows.
    """
    handshake = ListenerHandshake(*keys)
    stream = await _authenticate(reader, writer, handshake)
    assert handshake.key is not None
    return stream, await stream.receive(), handshake.key


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> Stream:
    writer.write(handshake.to_send)
    while handshake.expects:
        writer.write(handshake.receive(await reader.readexactly(handshake.expects)))
    return Stream(reader, writer, handshake.codec())


async def call(address: str, port: int, secret: bytes, introduction: Message) -> tuple[Stream, Message]:
    """A connection to the primary at an IP address: the stream, and the primary's first frame.

    Raises one of NETWORK_ERRORS.
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
    except BaseException:  # also when the deadline cancels it: the connection must not be left behind
        writer.transport.abort()
        raise


class MessageChannel:
    """One end of a conversation that outlives its connections."""

    def __init__(self, on_message: Callable[[Message], None]):
        self._on_message = on_message
        self._stream: Stream | None = None
        self._sent = 0
        self._unacknowledged: deque[tuple[int, Message]] = deque()
        self.got = 0
        """The number of the last message that was received."""
        self.heard_at = asyncio.get_running_loop().time()

    @property
    def connected(self) -> bool:
        return self._stream is not None

    @property
    def settled(self) -> bool:
        """Whether the other end has acknowledged all that was said."""
        return not self._unacknowledged

    def send(self, message: Message) -> None:
        """Says it now, or as soon as there is a connection."""
        self._sent += 1
        self._unacknowledged.append((self._sent, message))
        self._say(self._sent, message)

    def take_back(self, is_stale: Callable[[Message], bool]) -> None:
        """Sends these not again. The other end may have got them all the same; its numbers have gaps then."""
        left = [(number, message) for number, message in self._unacknowledged if not is_stale(message)]
        self._unacknowledged = deque(left)

    def beat(self) -> None:
        """A heartbeat: tells that this end lives, and what it has got."""
        if self._stream is not None:
            self._stream.send({"got": self.got})

    def _say(self, number: int, message: Message) -> None:
        if self._stream is not None:
            self._stream.send({"n": number, "got": self.got, "body": message})

    async def converse(self, stream: Stream, got: int) -> None:
        """Speaks and listens until the connection ends; `got` is what the other end has received before.

        A newer connection takes the place of the one before.
        """
        if self._stream is not None:
            self._stream.abort()
        self._stream = stream
        self.heard_at = asyncio.get_running_loop().time()
        self._forget(got)
        for number, message in self._unacknowledged:
            self._say(number, message)
        try:
            while self._stream is stream:
                self._take(await stream.receive(), stream)
        except NETWORK_ERRORS as error:
            log.info("a gang connection ended: %s", error or type(error).__name__)
        finally:
            stream.abort()
            if self._stream is stream:
                self._stream = None

    def _take(self, frame: Message, stream: Stream) -> None:
        if self._stream is not stream:
            return
        self.heard_at = asyncio.get_running_loop().time()
        self._forget(frame["got"])
        if "n" not in frame or frame["n"] <= self.got:
            return
        self.got = frame["n"]
        self._on_message(frame["body"])
        self.beat()

    def _forget(self, got: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= got:
            self._unacknowledged.popleft()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream = None


OnCaller = Callable[[Stream, Message], Awaitable[None]]


class Listener:
    """The primary's door: lets in who knows a key, whoever else knocks.

    `callers`: who takes a caller on, by the key that it proved to know: keepers by the run's secret, ranks by the
    exchange key made from it.
    """

    def __init__(self, callers: dict[bytes, OnCaller]):
        self._callers = callers
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._refusals = RefusedConnections()
        self._server: asyncio.AbstractServer | None = None

    async def open(self, held: socket.socket) -> None:
        """Listens on a socket that has been bound since the run was prepared."""
        held.setblocking(False)
        self._server = await asyncio.start_server(self._meet, sock=held)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strangers[writer] = None
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        peer = writer.get_extra_info("peername")
        try:
            handshake = admit(reader, writer, *self._callers)
            stream, introduction, key = await asyncio.wait_for(handshake, authenticated_transport.HANDSHAKE_DEADLINE_S)
        except (*NETWORK_ERRORS, ValueError) as error:
            line = self._refusals.note(f"turned away {peer} at the gang link: {error or 'it did not speak in time'}")
            if line:
                log.warning("%s", line)
            writer.transport.abort()
            return
        finally:
            self._strangers.pop(writer, None)
        try:
            await self._callers[key](stream, introduction)
        except Exception as error:  # the outer edge of this task: the loop's handler ends the run over it
            context = {"message": "a caller's message was not understood", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._strangers):
            writer.transport.abort()
