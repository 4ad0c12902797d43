"""Authenticated connections that transfer tensors between two processes of a run.

Both ends prove that they know the run's key (`torchyard_agent.protocol.authenticated_transport`). A message consists of
a header, which is a JSON object in a frame with a MAC, and the raw bytes of at most one tensor. The bytes are sent from
the tensor's memory, and received into the memory of another tensor. Nothing is unpickled, and the size and dtype in the
header are compared with the receiving tensor before any byte is received. The bytes have no MAC and are not encrypted.

A dead host is detected after about 7 s (DEAD_AFTER_S). The kernel also treats a receiver as dead if its receive buffer
stays full for that time. Therefore receivers must keep reading, and senders have a limit (credit) on unread data.

On loopback, a rate of 2 to 4 GB/s was measured in one direction with chunks of 1 MiB, with one core fully used at each
end.
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
from torchyard_roles.exchange.sockets import authenticate, limit_unsent, read_into, send_all, send_some, tune
from torchyard_roles.peers import PeerAddress as Peer

if TYPE_CHECKING:
    import torch

__all__ = ["Connection", "Peer", "dtype_name", "listen", "listen_at"]

MAX_HEADER = 64 * 1024
"""Largest size of a header in bytes. Longer data, such as a model's fingerprint, is sent as a tensor of uint8."""
DEAD_AFTER_S = 7
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
ONE_ATTEMPT_S = 5.0
DRAIN_S = 2.0
AHEAD = 4096
"""Size in bytes of the read buffer. One system call reads a header and the start of its payload into this buffer."""


def listen(address: str, port: int, backlog: int = 128) -> socket.socket:
    """Listens on a port that the keeper has reserved for this replica, or on a free port if `port` is 0."""
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
    """Listens at the address of this replica, or at all addresses if the host does not have this address.

    Raises EnvironmentProblem if this fails.
    """
    try:
        return listen(peer.address, peer.port)
    except OSError as first:
        try:  # The host may not have the address, for example behind NAT.
            return listen("::" if ":" in peer.address else "0.0.0.0", peer.port)
        except OSError:
            why = f"{peer.name} cannot listen on {peer.address}:{peer.port}: {first.strerror}."
            raise EnvironmentProblem(why) from None


class Connection:
    """One end of a connection. Any thread may send, but only one thread at a time may receive.

    All methods except post() raise PeerLost if the peer has exited or the connection is closed, and ProtocolError if a
    message is invalid. `sent_bytes` and `received_bytes` include headers, but neither the handshake nor the overhead of
    TCP.
    """

    def __init__(self, sock: socket.socket, codec: FrameCodec, peer: str, host: str) -> None:
        """Creates a connection on an authenticated socket. Use connect() or accept(), which authenticate both ends."""
        self.peer = peer
        self.host = host
        self.sent_bytes = 0
        self.received_bytes = 0
        self._socket = sock
        self._codec = codec
        self._sending = threading.Condition()
        self._backlog: deque[tuple[list[bytes | memoryview], torch.Tensor | None]] = deque()
        """Unsent parts of posted messages, each with the tensor that owns their memory."""
        self._sender: threading.Thread | None = None
        self._early: list[tuple[dict[str, Any], torch.Tensor | None]] | None = None
        """Messages that were posted before answer(). Their MACs are computed when they are sent."""
        self._ahead = memoryview(bytearray(AHEAD))
        self._ahead_start = self._ahead_end = 0
        self._filling: memoryview | None = None  # The part of the receiving tensor that has not been filled yet.
        self._closed = False
        self._pending: tuple[int, str] | None = None  # The size and dtype of the last header's payload.

    @classmethod
    def connect(
        cls, peer: Peer, key: bytes, introduction: dict[str, Any], deadline_s: float
    ) -> tuple[Connection, dict[str, Any]]:
        """Connects to `peer`, and returns the connection and the answer to the introduction.

        The introduction should contain this process's "name". Attempts are repeated until the peer is listening. Raises
        PeerLost after the deadline, and ProtocolError if the listener has another key or refuses the introduction.
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
            # A busy peer may need longer to answer than a handshake or the deadline of a short attempt allows. If this
            # process gave up and connected again, the peer would report the abandoned session to the group as the loss
            # of this process.
            sock.settimeout(max(authenticated_transport.HANDSHAKE_DEADLINE_S, deadline - time.monotonic()))
            connection.send(introduction)
            answer = connection.receive()
            sock.settimeout(None)
        except KeyRefused:
            sock.close()
            raise ProtocolError(f"{peer.name} on {peer.address} refused this process: it has another key.") from None
        except AuthenticationError as error:
            sock.close()
            raise ProtocolError(f"{peer.name} on {peer.address} was refused: {error}.") from None
        except BaseException:  # The socket is also closed after KeyboardInterrupt and SystemExit.
            sock.close()
            raise
        if "refused" in answer:
            connection.close()
            raise ProtocolError(str(answer["refused"]))
        return connection, answer

    @classmethod
    def accept(cls, sock: socket.socket, key: bytes) -> tuple[Connection, dict[str, Any]]:
        """Authenticates the client on an accepted socket, and returns the connection and the client's introduction.

        This takes about 5 s at most. The caller must then call answer() or refuse().

        Raises:
            ProtocolError: The client does not have the key, or failed the handshake. The socket is closed.
            PeerLost: The client did not send its introduction in time. The socket is closed.
        """
        host = "this host"
        deadline = time.monotonic() + authenticated_transport.HANDSHAKE_DEADLINE_S
        try:
            if sock.family != socket.AF_UNIX:
                host = str(sock.getpeername()[0])  # getpeername() raises OSError if the client has disconnected.
            tune(sock, DEAD_AFTER_S)
            connection = cls(sock, authenticate(sock, ListenerHandshake(key), deadline), "a caller", host)
            connection._early = []
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            introduction = connection.receive()
            sock.settimeout(None)
        except (AuthenticationError, OSError) as error:
            sock.close()
            raise ProtocolError(f"A caller from {host} was refused: {_reason(error)}.") from None
        except BaseException:  # The socket is also closed after KeyboardInterrupt and SystemExit.
            sock.close()
            raise
        connection.peer = str(introduction.get("name", connection.peer))
        return connection, introduction

    def answer(self, answer: dict[str, Any]) -> None:
        """Accepts the client, whose connect() then returns `answer`.

        Messages that were posted earlier are sent after the answer.
        """
        with self._sending:
            self._send_now(answer, None)
            early, self._early = self._early or [], None
            for header, payload in early:
                self.post(header, payload)

    def refuse(self, message: str) -> None:
        """Refuses the client, whose connect() then raises ProtocolError with this message."""
        try:
            with self._sending:
                self._send_now({"refused": message}, None)
        finally:
            self.close()

    def send(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Sends a header, and a tensor if given, and returns when the kernel has accepted all bytes.

        The tensor must be contiguous and on the CPU. Its size and dtype are added to the header as "bytes" and "dtype".
        """
        with self._sending:
            self._sending.wait_for(lambda: not self._backlog or self._closed)
            self._send_now(header, payload)

    def post(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Sends without waiting: a background thread sends the bytes that the kernel does not accept immediately.

        The tensor must not change until it is sent. If the peer is lost, only receiving raises an error.
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

    def limit_unsent(self, size: int) -> None:
        """Limits the number of unsent bytes in the kernel's send buffer, so that send() keeps pace with the link."""
        limit_unsent(self._socket, size)

    def flush(self, within_s: float) -> None:
        """Waits at most `within_s` until all posted messages are sent or the connection is closed."""
        with self._sending:
            self._sending.wait_for(lambda: not self._backlog or self._closed, timeout=within_s)

    def _message(self, header: dict[str, Any], payload: torch.Tensor | None) -> list[bytes | memoryview]:
        """Returns the parts of a message, ready to be sent next. The caller must hold the sending lock."""
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
        """Wakes the thread that sends posted messages, or starts it. The caller must hold the sending lock."""
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
        """Receives the next header. If it has "bytes", receive_into() or discard() must follow."""
        return self._receive(0)

    def receive_now(self) -> dict[str, Any] | None:
        """Receives the next header without waiting. Returns None if the header is not yet complete."""
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
            raise ProtocolError(f"{self.peer} on {self.host} sent an invalid header: {error}.") from None
        self.received_bytes += authenticated_transport.HEADER.size + len(text)
        size = header.get("bytes")
        if size is not None:
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 63:
                raise ProtocolError(f"{self.peer} on {self.host} announced {size!r} bytes.")
            self._pending = size, str(header.get("dtype", ""))
        return header

    def receive_into(self, tensor: torch.Tensor) -> None:
        """Receives the payload of the last header into the memory of a contiguous CPU tensor.

        If the size or dtype of the tensor differs from the header's, ProtocolError is raised before any byte is
        received.
        """
        self._read(self._place(tensor))

    def receive_into_now(self, tensor: torch.Tensor) -> bool:
        """Receives as much of a payload as is available without waiting, and otherwise works like receive_into().

        Returns:
            False if the payload is incomplete. The method must then be called again later with the same tensor.
        """
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
        """Returns a view of a tensor's memory.

        The tensor must have the size and dtype of the payload to be received.
        """
        size, dtype = self._pending or (0, "none")
        view = _memory(tensor)
        if size != len(view) or dtype != dtype_name(tensor.dtype):
            raise ProtocolError(
                f"{self.peer} on {self.host} announced {size} bytes of {dtype}, "
                f"but {len(view)} bytes of {dtype_name(tensor.dtype)} belong there."
            )
        return view

    def discard(self) -> None:
        """Receives and discards the payload of the last header, if it has one."""
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
        """Discards received data until the peer closes the connection or stops sending, or for about DRAIN_S.

        Must be called before close() if the peer may be sending. Closing a connection that has unread bytes would reset
        the connection, and the peer might lose the last data that this process sent.
        """
        scratch = bytearray(1 << 20)
        deadline = time.monotonic() + DRAIN_S
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(DRAIN_S)
            while time.monotonic() < deadline and self._socket.recv_into(scratch):
                pass

    def _take(self, size: int, flags: int) -> bytes:
        """Returns the next `size` bytes of a frame. Bytes after them may be read into the buffer."""
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
        """Copies buffered bytes into the view, and returns their number."""
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
        """Whether cut() or close() has been called."""
        return self._closed

    def fileno(self) -> int:
        """Returns the file descriptor, for a selector."""
        return self._socket.fileno()

    def cut(self) -> None:
        """Shuts the connection down. A receiving thread then gets PeerLost.

        The descriptor remains valid until close().
        """
        self._closed = True
        with suppress(OSError):  # The peer may already have closed the connection.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shuts the connection down, and closes the descriptor once no thread is sending. May be called repeatedly.

        Only the receiving thread may call this method, unless this thread has ended. The number of a closed descriptor
        is reused, so a thread that is still receiving could read from another connection.
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


@lru_cache
def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype, such as `float32`."""
    return str(dtype).rpartition(".")[2]


def _memory(tensor: torch.Tensor) -> memoryview:
    """Returns a view of the tensor's memory, valid as long as the tensor exists, without using numpy."""
    if not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"only contiguous tensors on the CPU can be sent, not one on {tensor.device}")
    if not tensor.nbytes:
        return memoryview(b"")
    return memoryview(_bytes_of(tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


@lru_cache(maxsize=256)
def _bytes_of(size: int) -> Any:
    """Returns the ctypes array type of a size. Types are cached because creating one is slow."""
    return ctypes.c_char * size


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
