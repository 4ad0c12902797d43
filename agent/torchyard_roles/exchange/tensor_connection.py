"""One authenticated connection between two processes of a run, over which tensors travel.

Both ends prove that they know the exchange key (`torchyard_agent.protocol.authenticated_transport`). Then every message
is a header, a JSON object in a frame under a MAC, and the raw bytes of at most one tensor right behind it, written from
and into the tensor's own memory. Nothing is unpickled, and the header's size and dtype are compared with the tensor
that is to take the bytes before one of them is received. The bytes themselves are neither sealed nor secret.

A peer whose host is gone without a word is noticed within 10 s (DEAD_AFTER_S), be the connection idle or not. The
kernel counts a receiver that leaves its window full for so long as dead too: whoever is sent something keeps reading,
and senders bound what they send by credit.

How fast it is depends on the cores and their memory, and on the chunks: on loopback 2 to 4 GB/s were seen in one
direction, in chunks of 1 MiB, each core at one end full.
"""

from __future__ import annotations

import ctypes
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torchyard_agent.protocol import authenticated_transport
from torchyard_agent.protocol.authenticated_transport import (
    AuthenticationError,
    CallerHandshake,
    FrameCodec,
    KeyRefused,
    ListenerHandshake,
)
from torchyard_roles.errors import EnvironmentProblem, PeerLost, ProtocolError
from torchyard_roles.exchange.socket_io import authenticate, read_into, send_all, send_some, tune
from torchyard_roles.peers import PeerAddress as Peer

if TYPE_CHECKING:
    import torch

__all__ = ["Connection", "Peer", "dtype_name", "listen", "listen_at"]

MAX_HEADER = 64 * 1024
"""Bytes of a header. What is longer, such as a model's fingerprint, is sent as a tensor of uint8."""
DEAD_AFTER_S = 7
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
ONE_ATTEMPT_S = 5.0
DRAIN_S = 2.0
AHEAD = 4096
"""Bytes read at most beyond a header: it comes with its frame and the beginning of its payload in one system call."""


def listen(address: str, port: int, backlog: int = 128) -> socket.socket:
    """A listening socket on a port that the keeper holds bound for this replica (or on a free one with port 0)."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def listen_at(peer: Peer) -> socket.socket:
    """listen() where this replica is reached by the others. Raises EnvironmentProblem."""
    try:
        return listen(peer.address, peer.port)
    except OSError as first:
        try:  # an address that this host is reached by but does not have, as behind a translation
            return listen("::" if ":" in peer.address else "0.0.0.0", peer.port)
        except OSError:
            why = f"{peer.name} cannot listen on {peer.address}:{peer.port}: {first.strerror}."
            raise EnvironmentProblem(why) from None


class Connection:
    """One end. Any thread may send; one thread at a time receives.

    Every method raises PeerLost where the other end is gone (or close() was called here), and ProtocolError for what
    cannot be. `sent_bytes` and `received_bytes` count headers too, but neither handshake nor TCP's own.
    """

    def __init__(self, sock: socket.socket, codec: FrameCodec, peer: str, host: str) -> None:
        """For connect() and accept(), which prove both ends first."""
        self.peer = peer
        self.host = host
        self.sent_bytes = 0
        self.received_bytes = 0
        self._socket = sock
        self._codec = codec
        self._sending = threading.Condition()
        self._backlog: deque[tuple[list[bytes | memoryview], torch.Tensor | None]] = deque()
        """Posted messages, or what is left of one, with the tensor that keeps their bytes valid."""
        self._sender: threading.Thread | None = None
        self._early: list[tuple[dict[str, Any], torch.Tensor | None]] | None = None
        """Posted to a caller that was not answered yet; frames are sealed in the order in which they are sent."""
        self._ahead = memoryview(bytearray(AHEAD))
        self._ahead_start = self._ahead_end = 0
        self._filling: memoryview | None = None  # what is left to fill of a payload's tensor
        self._closed = False
        self._pending: tuple[int, str] | None = None  # of the payload that follows the last header

    @classmethod
    def connect(
        cls, peer: Peer, key: bytes, introduction: dict[str, Any], deadline_s: float
    ) -> tuple[Connection, dict[str, Any]]:
        """A connection to `peer`, and its answer to the introduction (which should have "name": who calls).

        Tries again until the deadline while nobody listens there. Raises PeerLost after it, and ProtocolError at once
        where the listener has another key or refuses the introduction.
        """
        deadline = time.monotonic() + deadline_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return cls._call(peer, key, introduction, deadline)
            except (OSError, PeerLost) as error:
                why = error.why if isinstance(error, PeerLost) else _reason(error)
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerLost(peer.name, peer.address, why)
            time.sleep(min(pause, left))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    @classmethod
    def _call(
        cls, peer: Peer, key: bytes, introduction: dict[str, Any], deadline: float
    ) -> tuple[Connection, dict[str, Any]]:
        left = max(0.1, deadline - time.monotonic())
        sock = socket.create_connection((peer.address, peer.port), timeout=min(left, ONE_ATTEMPT_S))
        try:
            tune(sock, DEAD_AFTER_S)
            by = time.monotonic() + authenticated_transport.HANDSHAKE_DEADLINE_S
            connection = cls(sock, authenticate(sock, CallerHandshake(key), by), peer.name, peer.address)
            sock.settimeout(authenticated_transport.HANDSHAKE_DEADLINE_S)
            connection.send(introduction)
            answer = connection.receive()
            sock.settimeout(None)
        except KeyRefused:
            sock.close()
            raise ProtocolError(f"{peer.name} on {peer.address} refused this process: it has another key.") from None
        except AuthenticationError as error:
            sock.close()
            raise ProtocolError(f"{peer.name} on {peer.address} was refused: {error}.") from None
        except BaseException:
            sock.close()
            raise
        if "refused" in answer:
            connection.close()
            raise ProtocolError(str(answer["refused"]))
        return connection, answer

    @classmethod
    def accept(cls, sock: socket.socket, key: bytes) -> tuple[Connection, dict[str, Any]]:
        """The listener's end of a socket that accept() of a listening one gave, and the caller's introduction.

        Takes at most 5 s; a caller without the key is refused with a ProtocolError, and its socket closed. What
        comes next from here is answer() or refuse().
        """
        host = "this host"
        deadline = time.monotonic() + authenticated_transport.HANDSHAKE_DEADLINE_S
        try:
            if sock.family != socket.AF_UNIX:
                host = str(sock.getpeername()[0])  # fails where the caller has gone already
            tune(sock, DEAD_AFTER_S)
            connection = cls(sock, authenticate(sock, ListenerHandshake(key), deadline), "a caller", host)
            connection._early = []
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            introduction = connection.receive()
            sock.settimeout(None)
        except (AuthenticationError, OSError) as error:
            sock.close()
            raise ProtocolError(f"A caller from {host} was refused: {_reason(error)}.") from None
        except BaseException:
            sock.close()
            raise
        connection.peer = str(introduction.get("name", connection.peer))
        return connection, introduction

    def answer(self, answer: dict[str, Any]) -> None:
        """Take the caller in: its connect() returns this. What was posted before follows it."""
        with self._sending:
            self._send_now(answer, None)
            early, self._early = self._early or [], None
            for header, payload in early:
                self.post(header, payload)

    def refuse(self, sentence: str) -> None:
        """Send the caller away: its connect() raises a ProtocolError with this sentence."""
        try:
            with self._sending:
                self._send_now({"refused": sentence}, None)
        finally:
            self.close()

    def send(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Send a header, and the tensor's bytes behind it; returns when the kernel has taken them all.

        `payload` is contiguous and on the CPU; "bytes" and "dtype" are added to the header for it.
        """
        with self._sending:
            self._sending.wait_for(lambda: not self._backlog or self._closed)
            self._send_now(header, payload)

    def post(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Send without waiting: the calling thread sends what the kernel takes at once, a thread of this connection
        the rest. A second thread for every message would cost more than the message.

        The payload must not change until it is sent. A lost peer is raised on the receiving side only.
        """
        with self._sending:
            if self._early is not None:
                self._early.append((header, payload))
                return
            parts = self._message(header, payload)
            if not self._backlog:
                try:
                    self.sent_bytes += send_some(self._socket, parts)
                except OSError:
                    return
                if not parts:
                    return
            self._backlog.append((parts, payload))
            self._wake_sender()

    def flush(self, within_s: float) -> None:
        """Wait until the kernel has taken all that was posted, or the connection has ended; at most `within_s`."""
        with self._sending:
            self._sending.wait_for(lambda: not self._backlog or self._closed, timeout=within_s)

    def _message(self, header: dict[str, Any], payload: torch.Tensor | None) -> list[bytes | memoryview]:
        """The parts of a message, sealed as the next one: with the lock of sending held."""
        view = None
        if payload is not None:
            view = _memory(payload)
            header = {**header, "bytes": len(view), "dtype": dtype_name(payload.dtype)}
        text = authenticated_transport.encode_message(header)
        if len(text) > MAX_HEADER:
            raise ProtocolError(f"A header of {len(text)} bytes is over the limit of {MAX_HEADER}.")
        sealed = self._codec.seal(text)
        return [sealed] if view is None else [sealed, view]

    def _send_now(self, header: dict[str, Any], payload: torch.Tensor | None) -> None:
        parts = self._message(header, payload)
        try:
            self.sent_bytes += send_all(self._socket, parts)
        except OSError as error:
            raise self._lost(error) from None

    def _wake_sender(self) -> None:
        """With the lock of sending held."""
        if self._closed:
            return
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_backlog, name=f"rest to {self.peer}", daemon=True)
            self._sender.start()
        self._sending.notify_all()

    def _send_backlog(self) -> None:
        while True:
            with self._sending:
                self._sending.wait_for(lambda: self._backlog or self._closed)
                if self._closed:
                    return
                parts, _ = self._backlog[0]
            try:
                self.sent_bytes += send_all(self._socket, parts)
            except OSError:
                with self._sending:
                    self._backlog.clear()
                    self._sender = None
                    self._sending.notify_all()
                return
            with self._sending:
                self._backlog.popleft()
                self._sending.notify_all()

    def receive(self) -> dict[str, Any]:
        """The next header. Where it has "bytes", receive_into() or discard() must follow."""
        return self._receive(0)

    def receive_now(self) -> dict[str, Any] | None:
        """receive() without waiting: None while the header is not there yet."""
        try:
            return self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def _receive(self, flags: int) -> dict[str, Any]:
        if self._pending is not None:
            raise RuntimeError("the payload of the last header was not received")
        try:
            while (text := self._codec.receive(self._take(self._codec.expects, flags), MAX_HEADER)) is None:
                pass
            header = authenticated_transport.decode_message(text)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._lost(error) from None
        except AuthenticationError as error:
            raise ProtocolError(f"{self.peer} on {self.host} sent what is no header: {error}.") from None
        self.received_bytes += authenticated_transport.HEADER.size + len(text)
        size = header.get("bytes")
        if size is not None:
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 63:
                raise ProtocolError(f"{self.peer} on {self.host} announced {size!r} bytes.")
            self._pending = size, str(header.get("dtype", ""))
        return header

    def receive_into(self, tensor: torch.Tensor) -> None:
        """Receive the payload of the last header into the tensor's own memory (contiguous, on the CPU).

        Raises ProtocolError, with nothing received, where size or dtype is another than the tensor's.
        """
        self._read(self._place(tensor))

    def receive_into_now(self, tensor: torch.Tensor) -> bool:
        """receive_into() without waiting: whether all bytes are there, else to be called again with this tensor."""
        view = self._filling
        if view is None:
            view = self._place(tensor)
            view = view[self._buffered(view) :]
        try:
            while view:
                count = self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)
                if not count:
                    raise ConnectionResetError("it closed the connection")
                view = view[count:]
        except BlockingIOError:
            self._filling = view
            return False
        except OSError as error:
            raise self._lost(error) from None
        self._filling = None
        self._received()
        return True

    def _place(self, tensor: torch.Tensor) -> memoryview:
        """The tensor's bytes, which the payload of the last header fits."""
        size, dtype = self._pending or (0, "none")
        view = _memory(tensor)
        if size != len(view) or dtype != dtype_name(tensor.dtype):
            raise ProtocolError(
                f"{self.peer} on {self.host} announced {size} bytes of {dtype}, "
                f"but {len(view)} bytes of {dtype_name(tensor.dtype)} belong there."
            )
        return view

    def discard(self) -> None:
        """Receive the payload of the last header, if it has one, into nothing."""
        size, _ = self._pending or (0, "")
        scratch = memoryview(bytearray(min(size, 1 << 20)))
        left = size
        try:
            while left:
                part = scratch[: min(left, len(scratch))]
                read_into(self._socket, part[self._buffered(part) :])
                left -= len(part)
        except OSError as error:
            raise self._lost(error) from None
        self._received()

    def drain(self) -> None:
        """Before close(), where something was just sent to one that is still sending: read on for a moment.

        A connection that is closed with bytes unread resets the other end, which may then never see what was sent.
        """
        scratch = bytearray(1 << 20)
        deadline = time.monotonic() + DRAIN_S
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(DRAIN_S)
            while time.monotonic() < deadline and self._socket.recv_into(scratch):
                pass

    def _take(self, size: int, flags: int) -> bytes:
        """The next bytes, of a header."""
        while self._ahead_end - self._ahead_start < size:
            if self._ahead_start:
                rest = bytes(self._ahead[self._ahead_start : self._ahead_end])
                self._ahead[: len(rest)] = rest
                self._ahead_start, self._ahead_end = 0, len(rest)
            if size > len(self._ahead):
                longer = memoryview(bytearray(size))
                longer[: self._ahead_end] = self._ahead[: self._ahead_end]
                self._ahead = longer
            count = self._socket.recv_into(self._ahead[self._ahead_end :], 0, flags)
            if not count:
                raise ConnectionResetError("it closed the connection")
            self._ahead_end += count
        start = self._ahead_start
        self._ahead_start += size
        return bytes(self._ahead[start : start + size])

    def _buffered(self, view: memoryview) -> int:
        """Fill the view with what came along with the last header; how many bytes that were."""
        count = min(len(view), self._ahead_end - self._ahead_start)
        if count:
            view[:count] = self._ahead[self._ahead_start : self._ahead_start + count]
            self._ahead_start += count
        return count

    def _read(self, view: memoryview) -> None:
        try:
            read_into(self._socket, view[self._buffered(view) :])
        except OSError as error:
            raise self._lost(error) from None
        self._received()

    def _received(self) -> None:
        if self._pending is not None:
            self.received_bytes += self._pending[0]
        self._pending = None

    @property
    def closed(self) -> bool:
        """Whether close() was called here."""
        return self._closed

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def cut(self) -> None:
        """End the connection: a receiving thread meets PeerLost. The descriptor stays valid until close()."""
        self._closed = True
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """cut(), and let go of the descriptor once no thread sends. Twice is once.

        For the thread that receives, or after it: the system gives the number of a closed descriptor to the next
        connection, from which a thread that stood still would then receive.
        """
        self.cut()
        with self._sending:
            self._sending.notify_all()
            sender = self._sender
        if sender is not None and sender is not threading.current_thread():
            sender.join(timeout=5)
        with self._sending:
            self._socket.close()

    def _lost(self, error: OSError) -> PeerLost:
        return PeerLost(self.peer, self.host, "its connection was closed here" if self._closed else _reason(error))


def dtype_name(dtype: torch.dtype) -> str:
    """As in `float32`."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).rpartition(".")[2]
    return name


_dtype_names: dict[torch.dtype, str] = {}


def _memory(tensor: torch.Tensor) -> memoryview:
    """The tensor's own bytes. They are valid as long as the tensor lives; numpy is not needed."""
    if not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"only contiguous tensors on the CPU travel, not one on {tensor.device}")
    if not tensor.nbytes:
        return memoryview(b"")
    return memoryview(_bytes_of(tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


@lru_cache(maxsize=256)
def _bytes_of(size: int) -> Any:
    """ctypes' type of so many bytes, which costs more to make than to use."""
    return ctypes.c_char * size


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
